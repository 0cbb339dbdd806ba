package suiteimages

import (
	"context"
	"io/fs"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
	"github.com/kombi-k8s/kombi/tests/images/recipe"
)

// buildAgnhost makes the image that most specs run, and the two that are made of it.
// The published one is Alpine Linux with these programs.
func buildAgnhost(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	base, err := withPrograms(ctx, b,
		[]string{"bind9-dnsutils", "curl", "iperf", "iproute2", "libc-bin", "netcat-openbsd", "socat", "util-linux"},
		[]string{"/bin/ip", "/bin/nc.openbsd", "/bin/ss", "/usr/bin/curl", "/usr/bin/dig", "/usr/bin/getent", "/usr/bin/iperf",
			"/usr/bin/nsenter", "/usr/bin/nslookup", "/usr/bin/socat", "/usr/bin/unshare"})
	if err != nil {
		return nil, err
	}
	agnhost, err := b.Go(ctx, module, kubernetes+"/test/images/agnhost")
	if err != nil {
		return nil, err
	}
	coredns, err := b.Go(ctx, module, "./coredns")
	if err != nil {
		return nil, err
	}
	own, err := sources(ctx, b, map[string]string{
		"test/images/agnhost/porter/localhost.crt": "/localhost.crt",
		"test/images/agnhost/porter/localhost.key": "/localhost.key",
	})
	if err != nil {
		return nil, err
	}
	registry, err := registryFiles(ctx, b)
	if err != nil {
		return nil, err
	}
	own = append(own, registry...)
	own = append(own,
		ociimage.File{Path: "/bin/nc", Link: "nc.openbsd"},
		ociimage.File{Path: "/usr/local/bin/iperf", Link: "/usr/bin/iperf"},
		ociimage.File{Path: "/agnhost", Mode: 0o755, Data: agnhost},
		ociimage.File{Path: "/agnhost-2", Link: "agnhost"},
		ociimage.File{Path: "/coredns", Mode: 0o755, Data: coredns},
		ociimage.File{Path: "/uploads", Mode: fs.ModeDir | 0o755},
		ociimage.File{Path: "/etc/nsswitch.conf", Mode: 0o644, Data: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
		// A spec looks for the name of the distribution that it expects.
		ociimage.File{Path: "/etc/os-release", Mode: 0o644, Data: []byte("ID=kombi-test\nPRETTY_NAME=\"Programs of Debian in place of Alpine Linux\"\n")},
		ociimage.File{Path: "/etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n" +
			"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n")},
		ociimage.File{Path: "/etc/group", Mode: 0o644, Data: []byte("root:x:0:\ntty:x:5:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\n" +
			"group-defined-in-image:x:50000:user-defined-in-image\n")},
	)
	layer, err := ociimage.Layer(over(base, own))
	if err != nil {
		return nil, err
	}
	config := ocispec.ImageConfig{
		Entrypoint: []string{"/agnhost"},
		Cmd:        []string{"pause"},
		ExposedPorts: map[string]struct{}{
			"80/tcp": {}, "8080/tcp": {}, "8081/tcp": {}, "9376/tcp": {}, "5000/tcp": {},
		},
	}
	var all []*ociimage.Image
	for _, id := range []imageutils.ImageID{imageutils.Agnhost, imageutils.AgnhostPrev} {
		img, err := image(id, config, layer)
		if err != nil {
			return nil, err
		}
		all = append(all, img)
	}
	config.Cmd = []string{"test-webserver"}
	for id, name := range map[imageutils.ImageID]string{imageutils.Kitten: "kitten", imageutils.Nautilus: "nautilus"} {
		html, err := sources(ctx, b, map[string]string{
			"test/images/" + name + "/html/" + name + ".jpg": "/" + name + ".jpg",
			"test/images/" + name + "/html/data.json":        "/data.json",
		})
		if err != nil {
			return nil, err
		}
		top, err := ociimage.Layer(html)
		if err != nil {
			return nil, err
		}
		img, err := image(id, config, layer, top)
		if err != nil {
			return nil, err
		}
		all = append(all, img)
	}
	return all, nil
}
