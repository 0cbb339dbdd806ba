package images

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Labels that containerd's CRI plugin reads.
const (
	// LabelManaged marks an image that the CRI plugin shows to the kubelet.
	LabelManaged = "io.cri-containerd.image"
	// ManagedValue is the value of LabelManaged.
	ManagedValue = "managed"
	// LabelPinned marks an image that the kubelet's garbage collection leaves alone.
	LabelPinned = "io.cri-containerd.pinned"
	// PinnedValue is the value of LabelPinned.
	PinnedValue = "pinned"
)

// Namespace is the containerd namespace that the kubelet's images are in.
const Namespace = "k8s.io"

// ImportOptions control one import.
type ImportOptions struct {
	// Snapshotter unpacks the images; empty means the default of the namespace.
	Snapshotter string
	// Pinned protects the images from the kubelet's garbage collection.
	Pinned bool
	// Name is the repository given to images that carry only a tag.
	Name string
	// Progress, when set, is called with the number of bytes read so far.
	Progress func(read int64)
}

// Imported is one image name that an import created or replaced.
type Imported struct {
	// Name is the full reference.
	Name string `json:"name"`
	// Digest is that of the manifest or index that the name points to.
	Digest digest.Digest `json:"digest"`
}

// Import reads a docker or OCI archive, plain or compressed with gzip or zstd,
// and makes its images usable by pods: stored, named, labelled and unpacked.
// An archive that is no image is refused with an error of type *Refused. On
// error no image is left half imported.
func Import(ctx context.Context, client *containerd.Client, r io.Reader, opts ImportOptions) ([]Imported, error) {
	// One lease over all steps: nothing is collected before its name points to it.
	ctx, done, err := client.WithLease(ctx)
	if err != nil {
		return nil, fmt.Errorf("import images: %w", err)
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }()

	if opts.Progress != nil {
		r = &countingReader{r: r, report: opts.Progress}
	}
	tarball, err := decompress(r)
	if err != nil {
		return nil, err
	}
	defer tarball.Close()

	var nameless []string
	var unpacked int64
	imgs, err := client.Import(ctx, &countingReader{r: tarball, report: func(n int64) { unpacked = n }},
		containerd.WithImageLabels(Labels(opts.Pinned)),
		containerd.WithImageRefTranslator(func(ref string) string {
			name, err := FullName(ref, opts.Name)
			if err != nil {
				nameless = append(nameless, ref)
			}
			return name
		}),
	)
	if errors.Is(err, tar.ErrHeader) && unpacked > 512 {
		// The first header was good, so this was an archive once.
		return nil, &Refused{Reason: reasonDamaged, Err: err}
	}
	if err != nil {
		return nil, explain(err)
	}
	// The tar may end before the file does: read on, so that a cut or damaged
	// compressed stream is seen even then.
	if _, err := io.Copy(io.Discard, tarball); err != nil {
		return nil, errors.Join(classify(err), remove(ctx, client, imgs))
	}
	if len(imgs) == 0 {
		if len(nameless) > 0 {
			return nil, &Refused{Reason: fmt.Sprintf("its image is named only %q: give the repository with `kombi image import --name`, or save it again with its full name", nameless[0])}
		}
		return nil, &Refused{Reason: "its images have no name: save it again by name instead of by id"}
	}
	imported := make([]Imported, 0, len(imgs))
	for _, img := range imgs {
		if err := Adopt(ctx, client, img, opts); err != nil {
			return nil, errors.Join(fmt.Errorf("image %s: %w", img.Name, err), remove(ctx, client, imgs))
		}
		imported = append(imported, Imported{Name: img.Name, Digest: img.Target.Digest})
	}
	return imported, nil
}

// Labels are what the CRI plugin expects on an image that pods may use.
func Labels(pinned bool) map[string]string {
	l := map[string]string{LabelManaged: ManagedValue}
	if pinned {
		l[LabelPinned] = PinnedValue
	}
	return l
}

// Adopt makes a stored image usable by pods: unpacks it for this platform and
// adds the two names that the kubelet uses beside the tag, which are the image
// id and repository@digest.
func Adopt(ctx context.Context, client *containerd.Client, img images.Image, opts ImportOptions) error {
	i := containerd.NewImage(client, img)
	if err := i.Unpack(ctx, opts.Snapshotter); err != nil {
		if errdefs.IsNotFound(err) {
			return &Refused{Reason: reasonMissing, Err: err}
		}
		if strings.Contains(err.Error(), tar.ErrHeader.Error()) { // from containerd, as text
			return &Refused{Reason: reasonDamaged, Err: err}
		}
		return fmt.Errorf("unpack: %w", err)
	}
	config, err := i.Config(ctx)
	if err != nil {
		return err
	}
	names := []string{config.Digest.String()}
	if named, err := reference.ParseDockerRef(img.Name); err == nil {
		names = append(names, named.Name()+"@"+img.Target.Digest.String())
	}
	for _, name := range names {
		alias := images.Image{Name: name, Target: img.Target, Labels: Labels(opts.Pinned)}
		if err := put(ctx, client.ImageService(), alias); err != nil {
			return fmt.Errorf("name %s: %w", name, err)
		}
	}
	return nil
}

// put creates the image name, or points it to the target of img. A pin that is
// there already stays.
func put(ctx context.Context, store images.Store, img images.Image) error {
	_, err := store.Create(ctx, img)
	if !errdefs.IsAlreadyExists(err) {
		return err
	}
	paths := []string{"target"}
	for key := range img.Labels {
		paths = append(paths, "labels."+key)
	}
	_, err = store.Update(ctx, img, paths...)
	return err
}

func remove(ctx context.Context, client *containerd.Client, imgs []images.Image) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for _, img := range imgs {
		if err := client.ImageService().Delete(ctx, img.Name); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove %s again: %w", img.Name, err))
		}
	}
	return errors.Join(errs...)
}

// FullName is the reference that the kubelet would ask for: with registry,
// repository and tag. A reference that is only a tag belongs to repository.
func FullName(ref, repository string) (string, error) {
	if !strings.ContainsAny(ref, "/:@") {
		if repository == "" {
			return "", errors.New("only a tag")
		}
		ref = repository + ":" + ref
	}
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", err
	}
	return named.String(), nil
}

// explain turns what containerd says of a broken archive into a refusal.
func explain(err error) error {
	if c := classify(err); c != err { //nolint:errorlint // identity: was it classified?
		return c
	}
	text := err.Error()
	switch {
	case errors.Is(err, images.ErrEmptyWalk):
		return &Refused{Reason: fmt.Sprintf("it holds no image for this machine's platform %s: save it for this platform", platforms.DefaultString())}
	case strings.Contains(text, "unrecognized image format"), strings.Contains(text, "missing index.json"):
		return &Refused{Reason: reasonForeign, Err: err}
	case errdefs.IsNotFound(err), strings.Contains(text, "no target for symlink"), strings.HasSuffix(text, "not found"):
		return &Refused{Reason: reasonMissing, Err: err}
	case strings.Contains(text, "untar manifest"), strings.Contains(text, "untar oci layout"), strings.Contains(text, "unsupported OCI version"):
		return &Refused{Reason: reasonForeign, Err: err}
	}
	return fmt.Errorf("import images: %w", err)
}

type countingReader struct {
	r      io.Reader
	n      int64
	report func(int64)
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.report(c.n)
	return n, err
}
