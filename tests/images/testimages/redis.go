package testimages

import (
	"context"
	"io/fs"
	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
	"github.com/kombi-k8s/kombi/tests/images/recipe"
)

// redisPackages hold redis-server, redis-cli and every library that they need.
var redisPackages = []string{
	"redis-tools", "libc6", "libatomic1", "libcap2", "libgcrypt20", "libgpg-error0", "libhiredis0.14", "libjemalloc2",
	"liblua5.1-0", "lua-bitop", "lua-cjson", "liblz4-1", "liblzf1", "liblzma5", "libssl3", "libsystemd0", "libzstd1",
	"libstdc++6", "libgcc-s1",
}

func buildRedis(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	root, err := b.Unpack(ctx, redisPackages...)
	if err != nil {
		return nil, err
	}
	// In Debian redis-server is a link to redis-check-rdb, which is the same program.
	files, err := recipe.Closure(root, "/usr/bin/redis-check-rdb", "/usr/bin/redis-cli")
	if err != nil {
		return nil, err
	}
	files = append(files,
		ociimage.File{Path: "/usr/bin/redis-server", Link: "redis-check-rdb"},
		ociimage.File{Path: "/etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/:/sbin/nologin\nredis:x:999:999:redis:/data:/sbin/nologin\n")},
		ociimage.File{Path: "/etc/group", Mode: 0o644, Data: []byte("root:x:0:\nredis:x:999:\n")},
		ociimage.File{Path: "/data", Mode: fs.ModeDir | 0o755, UID: 999, GID: 999},
		ociimage.File{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	)
	layer, err := ociimage.Layer(files)
	if err != nil {
		return nil, err
	}
	img, err := ociimage.Build(ociimage.Spec{
		Name: Redis, OS: "linux", Arch: runtime.GOARCH,
		Config: ocispec.ImageConfig{
			// Every write is on disk before it is acknowledged.
			Cmd:          []string{"redis-server", "--dir", "/data", "--appendonly", "yes", "--appendfsync", "always", "--protected-mode", "no"},
			Env:          []string{"PATH=/usr/bin", "LD_LIBRARY_PATH=/usr/lib"},
			User:         "999:999",
			WorkingDir:   "/data",
			ExposedPorts: map[string]struct{}{"6379/tcp": {}},
		},
		Layers: [][]byte{layer},
	})
	return []*ociimage.Image{img}, err
}
