package imagecmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	coreimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/pkg/node/images"
)

type pullOptions struct {
	platform, creds, hostsDir string
	plainHTTP, pin            bool
}

func newPull(c connector) *cobra.Command {
	var opts pullOptions
	cmd := &cobra.Command{
		Use:   "pull NAME",
		Short: "Pull an image from its registry",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("give exactly one image to pull, such as example.com/shop:v2")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.use(cmd.Context(), func(ctx context.Context, client *containerd.Client) error {
				return pull(ctx, cmd, client, args[0], opts)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.platform, "platform", "", "platform such as linux/arm64; this machine's without it")
	f.StringVar(&opts.creds, "creds", "", "user:password for the registry")
	f.BoolVar(&opts.plainHTTP, "plain-http", false, "talk to the registry without TLS")
	f.StringVar(&opts.hostsDir, "hosts-dir", "", "folder of registry configurations (<host>/hosts.toml)")
	f.BoolVar(&opts.pin, "pin", false, "protect the image from the kubelet's garbage collection")
	return cmd
}

func pull(ctx context.Context, cmd *cobra.Command, client *containerd.Client, name string, o pullOptions) error {
	full, err := images.FullName(name, "")
	if err != nil {
		return fmt.Errorf("%q is no image name: %w", name, err)
	}
	hosts, err := registryHosts(ctx, o)
	if err != nil {
		return err
	}
	foreign := false
	tracker := &pullTracker{store: client.ContentStore(), bar: newProgress(cmd.ErrOrStderr(), "pulling "+full, 0)}
	pullOpts := []containerd.RemoteOpt{
		containerd.WithResolver(docker.NewResolver(docker.ResolverOptions{Hosts: hosts})),
		containerd.WithPullLabels(images.Labels(o.pin)),
		containerd.WithImageHandler(tracker),
	}
	if o.platform != "" {
		p, err := platforms.Parse(o.platform)
		if err != nil {
			tracker.bar.done()
			return fmt.Errorf("platform %q: %w; it is written like linux/arm64", o.platform, err)
		}
		foreign = !platforms.Default().Match(p)
		pullOpts = append(pullOpts, containerd.WithPlatform(o.platform))
	}
	// Nothing may be collected between the download and the last name.
	ctx, done, err := client.WithLease(ctx)
	if err != nil {
		tracker.bar.done()
		return fmt.Errorf("pull %s: %w", full, err)
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }()

	watching, stop := context.WithCancel(ctx)
	go tracker.watch(watching)
	img, err := client.Pull(ctx, full, pullOpts...)
	stop()
	tracker.bar.done()
	if err != nil {
		return explainPull(full, err)
	}
	// An image for another machine can be exported from here, but not run.
	if !foreign {
		if err := images.Adopt(ctx, client, img.Metadata(), images.ImportOptions{Pinned: o.pin}); err != nil {
			return fmt.Errorf("image %s: %w", full, err)
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "pulled %s\n", full)
	return nil
}

func registryHosts(ctx context.Context, o pullOptions) (docker.RegistryHosts, error) {
	opts := config.HostOptions{}
	if o.plainHTTP {
		opts.DefaultScheme = "http"
	}
	if o.hostsDir != "" {
		opts.HostDir = config.HostDirFromRoot(o.hostsDir)
	}
	if o.creds != "" {
		user, password, ok := strings.Cut(o.creds, ":")
		if !ok {
			return nil, errors.New("--creds has no colon: write it as user:password")
		}
		opts.Credentials = func(string) (string, string, error) { return user, password, nil }
	}
	return config.ConfigureHosts(ctx, opts), nil
}

func explainPull(name string, err error) error {
	switch {
	case errdefs.IsNotFound(err):
		return fmt.Errorf("pull %s: the registry has no such image for this platform (%w): check name and tag, or choose with --platform", name, err)
	case errors.Is(err, docker.ErrInvalidAuthorization), strings.Contains(err.Error(), "401"), strings.Contains(err.Error(), "403"):
		return fmt.Errorf("pull %s: the registry refuses access (%w): give --creds user:password", name, err)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("pull %s: the registry speaks plain HTTP: add --plain-http if you trust the network to it", name)
	}
	return fmt.Errorf("pull %s: %w", name, err)
}

// pullTracker adds up what is stored of the content that a pull needs. It is an
// image handler: the pull shows it every descriptor on the way.
type pullTracker struct {
	store content.Store
	bar   *progress

	mu    sync.Mutex
	parts map[digest.Digest]ocispec.Descriptor
}

// Handle implements images.Handler and adds no children of its own.
func (t *pullTracker) Handle(_ context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if coreimages.IsIndexType(desc.MediaType) {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.parts == nil {
		t.parts = map[digest.Digest]ocispec.Descriptor{}
	}
	t.parts[desc.Digest] = desc
	return nil, nil
}

func (t *pullTracker) watch(ctx context.Context) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		t.mu.Lock()
		parts := make([]ocispec.Descriptor, 0, len(t.parts))
		for _, desc := range t.parts {
			parts = append(parts, desc)
		}
		t.mu.Unlock()
		var done, total int64
		for _, desc := range parts {
			total += desc.Size
			if st, err := t.store.Status(ctx, remotes.MakeRefKey(ctx, desc)); err == nil {
				done += st.Offset
			} else if _, err := t.store.Info(ctx, desc.Digest); err == nil {
				done += desc.Size
			}
		}
		t.bar.grow(total)
		t.bar.set(done)
	}
}
