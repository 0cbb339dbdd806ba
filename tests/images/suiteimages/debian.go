package suiteimages

import (
	"context"
	"io/fs"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
	"github.com/kombi-k8s/kombi/tests/images/recipe"
)

// rootfs is busybox with a static bash as its shell. Debian's build of busybox runs
// its own applets in place of programs of the same name when it is the shell, and
// drops variables from the environment that no shell can name.
func rootfs(ctx context.Context, b *recipe.Builder) ([]ociimage.File, error) {
	base, err := b.Busybox(ctx)
	if err != nil {
		return nil, err
	}
	root, err := b.Unpack(ctx, "bash-static")
	if err != nil {
		return nil, err
	}
	bash, err := recipe.StaticProgram(filepath.Join(root, "bin/bash-static"))
	if err != nil {
		return nil, err
	}
	return over(base, []ociimage.File{
		{Path: "/bin/bash", Mode: 0o755, Data: bash},
		{Path: "/bin/sh", Link: "bash"},
	}), nil
}

// withPrograms is rootfs with programs of Debian packages over it.
func withPrograms(ctx context.Context, b *recipe.Builder, packages, programs []string) ([]ociimage.File, error) {
	root, err := b.Debian(ctx, packages...)
	if err != nil {
		return nil, err
	}
	files, err := recipe.Closure(root, programs...)
	if err != nil {
		return nil, err
	}
	base, err := rootfs(ctx, b)
	if err != nil {
		return nil, err
	}
	return over(base, files), nil
}

// buildGlibcDNS makes the image that resolves names with glibc.
func buildGlibcDNS(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	files, err := withPrograms(ctx, b, []string{"bind9-dnsutils", "hostname", "libc-bin"},
		[]string{"/bin/hostname", "/usr/bin/dig", "/usr/bin/getent", "/usr/bin/nslookup"})
	if err != nil {
		return nil, err
	}
	files = append(files,
		ociimage.File{Path: "/etc/nsswitch.conf", Mode: 0o644, Data: []byte("passwd: files\ngroup: files\nhosts: files dns\n")})
	return images(ocispec.ImageConfig{Cmd: []string{"bash"}}, files, imageutils.GlibcDnsTesting)
}

func buildIPCUtils(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	files, err := withPrograms(ctx, b, []string{"util-linux"}, []string{"/usr/bin/ipcmk", "/usr/bin/ipcrm", "/usr/bin/ipcs"})
	if err != nil {
		return nil, err
	}
	return images(ocispec.ImageConfig{Cmd: []string{"sh"}}, files, imageutils.IpcUtils)
}

const nginxConf = `worker_processes auto;
pid /run/nginx.pid;
error_log /dev/stderr notice;
events { worker_connections 1024; }
http {
  default_type text/html;
  access_log /dev/stdout;
  server {
    listen 80;
    location / { root /usr/share/nginx/html; index index.html; }
  }
}
`

const nginxIndex = `<!DOCTYPE html>
<html><head><title>Welcome to nginx!</title></head><body><h1>Welcome to nginx!</h1></body></html>
`

// buildNginx has Debian's nginx with the paths of the published image.
func buildNginx(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	files, err := withPrograms(ctx, b, []string{"nginx", "curl"}, []string{"/usr/sbin/nginx", "/usr/bin/curl"})
	if err != nil {
		return nil, err
	}
	files = append(files,
		ociimage.File{Path: "/etc/nginx/nginx.conf", Mode: 0o644, Data: []byte(nginxConf)},
		ociimage.File{Path: "/usr/share/nginx/html/index.html", Mode: 0o644, Data: []byte(nginxIndex)},
		ociimage.File{Path: "/var/lib/nginx", Mode: fs.ModeDir | 0o755},
		ociimage.File{Path: "/var/log/nginx", Mode: fs.ModeDir | 0o755},
		ociimage.File{Path: "/run", Mode: fs.ModeDir | 0o755},
	)
	return images(ocispec.ImageConfig{
		Cmd:          []string{"nginx", "-g", "daemon off;"},
		ExposedPorts: map[string]struct{}{"80/tcp": {}},
		StopSignal:   "SIGQUIT",
	}, files, imageutils.Nginx, imageutils.NginxNew)
}

// buildResourceConsumer uses CPU and memory when it is asked to.
func buildResourceConsumer(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	files, err := withPrograms(ctx, b, []string{"stress"}, []string{"/usr/bin/stress"})
	if err != nil {
		return nil, err
	}
	const pkg = kubernetes + "/test/images/resource-consumer"
	consumer, err := b.Go(ctx, module, pkg)
	if err != nil {
		return nil, err
	}
	cpu, err := b.Go(ctx, module, pkg+"/consume-cpu")
	if err != nil {
		return nil, err
	}
	files = append(files,
		ociimage.File{Path: "/consumer", Mode: 0o755, Data: consumer},
		ociimage.File{Path: "/consume-cpu/consume-cpu", Mode: 0o755, Data: cpu},
	)
	return images(ocispec.ImageConfig{
		Entrypoint:   []string{"/consumer"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
	}, files, imageutils.ResourceConsumer)
}
