package suiteimages

import (
	"context"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
	"github.com/kombi-k8s/kombi/tests/images/recipe"
)

// program makes an image with nothing but one static program.
func program(ctx context.Context, b *recipe.Builder, pkg, path string, id imageutils.ImageID, args ...string) ([]*ociimage.Image, error) {
	data, err := b.Go(ctx, module, pkg)
	if err != nil {
		return nil, err
	}
	return images(ocispec.ImageConfig{Entrypoint: append([]string{path}, args...)}, []ociimage.File{
		{Path: path, Mode: 0o755, Data: data},
		{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	}, id)
}

func buildEtcd(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	data, err := b.Go(ctx, module, "go.etcd.io/etcd/server/v3")
	if err != nil {
		return nil, err
	}
	return images(ocispec.ImageConfig{Cmd: []string{"/usr/local/bin/etcd"}}, []ociimage.File{
		{Path: "/usr/local/bin/etcd", Mode: 0o755, Data: data},
		{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	}, imageutils.Etcd)
}

func buildSampleAPIServer(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	return program(ctx, b, "k8s.io/sample-apiserver", "/sample-apiserver", imageutils.APIServer)
}

func buildSampleDevicePlugin(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	return program(ctx, b, kubernetes+"/test/images/sample-device-plugin", "/sampledeviceplugin", imageutils.SampleDevicePlugin, "-alsologtostderr")
}

func buildRegression(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	return program(ctx, b, kubernetes+"/test/images/regression-issue-74839", "/regression-issue-74839", imageutils.RegressionIssue74839)
}

// buildBusybox also makes nonroot, which is the same with another user.
func buildBusybox(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	files, err := rootfs(ctx, b)
	if err != nil {
		return nil, err
	}
	busybox, err := images(ocispec.ImageConfig{Cmd: []string{"sh"}}, files, imageutils.BusyBox)
	if err != nil {
		return nil, err
	}
	nonroot, err := images(ocispec.ImageConfig{Cmd: []string{"sh"}, User: "1234"}, files, imageutils.NonRoot)
	return append(busybox, nonroot...), err
}

// buildPause has Kombi's own pause program.
func buildPause(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	out := filepath.Join(b.Work, "pause")
	cc := exec.CommandContext(ctx, "cc", "-Os", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector",
		"-fno-asynchronous-unwind-tables", "-fno-pie", "-no-pie", "-s", "-o", out, "cmd/pause/pause.c")
	cc.Dir = b.Repo
	if text, err := cc.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pause: %w\n%s", err, text)
	}
	data, err := recipe.StaticProgram(out)
	if err != nil {
		return nil, err
	}
	return images(ocispec.ImageConfig{Entrypoint: []string{"/pause"}, User: "65535:65535"},
		[]ociimage.File{{Path: "/pause", Mode: 0o755, Data: data}}, imageutils.Pause)
}

// buildNonewprivs has a program that tells whether its setuid bit had an effect.
func buildNonewprivs(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	files, err := rootfs(ctx, b)
	if err != nil {
		return nil, err
	}
	data, err := b.Go(ctx, module, kubernetes+"/test/images/nonewprivs")
	if err != nil {
		return nil, err
	}
	files = append(files, ociimage.File{Path: "/usr/local/bin/nnp", Mode: fs.ModeSetuid | fs.ModeSetgid | 0o755, Data: data})
	return images(ocispec.ImageConfig{Cmd: []string{"nnp"}}, files, imageutils.Nonewprivs)
}
