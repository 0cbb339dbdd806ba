// Package images owns the images that a node has without a registry: the
// archives in the images folder, and the sandbox image. It talks to containerd
// through its socket and touches nothing but the images folder, its own state
// file, and the image names in containerd's namespace.
package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// Options configure the component.
type Options struct {
	// Log receives one line for each file imported or refused.
	Log *slog.Logger
	// Socket is the path of containerd's socket.
	Socket string
	// Namespace is containerd's namespace; empty means the kubelet's.
	Namespace string
	// Dir is the folder of archives. It is made, mode 0700, if it is missing.
	Dir string
	// StateFile remembers what was imported; its folder has to exist.
	StateFile string
	// Snapshotter unpacks the images; empty means containerd's default.
	Snapshotter string
	// Settle is how long a folder must be quiet before its changes are read;
	// 0 means 200 ms.
	Settle time.Duration
	// Retry is the pause before an import that failed for reasons outside of
	// the file is tried again, doubled each time up to 5 minutes; 0 means 5 s.
	Retry time.Duration
}

// FileStatus is the outcome of one archive.
type FileStatus struct {
	// File is the name inside the images folder.
	File string `json:"file"`
	// Images are the names that came from the file.
	Images []Imported `json:"images,omitempty"`
	// Error is one sentence with cause and next action; empty on success.
	Error string `json:"error,omitempty"`
	// Pending is true while the file is still being written.
	Pending bool `json:"pending,omitempty"`
}

// Images is the component that keeps the images folder imported.
type Images struct {
	opts   Options
	passed chan struct{} // closed after the first pass over the folder

	mu       sync.Mutex
	status   map[string]FileStatus
	passOnce sync.Once
}

// New returns the component; nothing happens before Run.
func New(opts Options) *Images {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Namespace == "" {
		opts.Namespace = Namespace
	}
	if opts.Settle == 0 {
		opts.Settle = 200 * time.Millisecond
	}
	if opts.Retry == 0 {
		opts.Retry = 5 * time.Second
	}
	return &Images{opts: opts, passed: make(chan struct{}), status: map[string]FileStatus{}}
}

// Name implements component.Component.
func (*Images) Name() string { return "images" }

// Needs implements component.Component.
func (*Images) Needs() []string { return []string{"containerd"} }

// Restartable implements component.Restartable.
func (*Images) Restartable() bool { return true }

// Wait blocks until every file that was in the folder at the start has been
// imported or refused, or until ctx is done.
func (im *Images) Wait(ctx context.Context) error {
	select {
	case <-im.passed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the images folder %s: %w", im.opts.Dir, context.Cause(ctx))
	}
}

// Status lists the files of the folder with their outcome, by name.
func (im *Images) Status() []FileStatus {
	im.mu.Lock()
	defer im.mu.Unlock()
	files := make([]FileStatus, 0, len(im.status))
	for _, name := range slices.Sorted(maps.Keys(im.status)) {
		files = append(files, im.status[name])
	}
	return files
}

// Run implements component.Component. It is ready at once: importing goes on
// while the node takes up its work.
func (im *Images) Run(ctx context.Context, ready func()) error {
	if err := os.MkdirAll(im.opts.Dir, 0o700); err != nil {
		return fmt.Errorf("images folder: %w", err)
	}
	client, err := containerd.New(im.opts.Socket, containerd.WithDefaultNamespace(im.opts.Namespace))
	if err != nil {
		return fmt.Errorf("images: connect to containerd: %w", err)
	}
	defer func() { _ = client.Close() }()
	// Watch first, look second: what arrives in between is seen.
	w, err := newWatcher(im.opts.Dir)
	if err != nil {
		return fmt.Errorf("images folder: %w", err)
	}
	ready()

	ctx, cancel := context.WithCancelCause(namespaces.WithNamespace(ctx, im.opts.Namespace))
	defer cancel(nil)
	wake := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() {
		err := w.run(ctx, func(name string) {
			if ignored(name) && name != "" {
				return
			}
			select {
			case wake <- struct{}{}:
			default:
			}
		})
		cancel(err)
	})
	err = im.loop(ctx, client, wake)
	cancel(nil)
	watching.Wait()
	if err != nil {
		return fmt.Errorf("images folder %s: %w", im.opts.Dir, err)
	}
	return nil
}

// loop looks at the folder whenever it changed and was quiet for a moment.
func (im *Images) loop(ctx context.Context, client *containerd.Client, wake <-chan struct{}) error {
	if im.opts.Snapshotter != "" {
		if err := setDefaultSnapshotter(ctx, client, im.opts.Namespace, im.opts.Snapshotter); err != nil && ctx.Err() == nil {
			im.opts.Log.Warn("containerd's default snapshotter is not set", "err", err)
		}
	}
	state, err := loadState(im.opts.StateFile)
	if err != nil {
		im.opts.Log.Warn(err.Error())
	}
	pass := &pass{Options: im.opts, client: client, state: state, report: im.report}
	wait := im.opts.Retry
	for {
		again := pass.run(ctx)
		if ctx.Err() == nil {
			im.passOnce.Do(func() { close(im.passed) })
		}
		var retry <-chan time.Time
		if again {
			retry = time.After(wait)
			wait = min(2*wait, 5*time.Minute)
		} else {
			wait = im.opts.Retry
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
				return cause
			}
			return nil
		case <-retry:
		case <-wake:
			settle(ctx, wake, im.opts.Settle)
		}
	}
}

// settle returns when wake was quiet for d, but after 10 d at the latest.
func settle(ctx context.Context, wake <-chan struct{}, d time.Duration) {
	latest := time.After(10 * d)
	for {
		select {
		case <-ctx.Done():
			return
		case <-latest:
			return
		case <-wake:
		case <-time.After(d):
			return
		}
	}
}

func (im *Images) report(files map[string]FileStatus) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.status = files
}

// ignored names are hidden files and the usual names of unfinished copies.
func ignored(name string) bool {
	return name == "" || strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") ||
		slices.Contains([]string{".part", ".partial", ".tmp", ".crdownload", ".filepart"}, strings.ToLower(filepath.Ext(name)))
}

// setDefaultSnapshotter makes the node's snapshotter the one that every client
// of the namespace uses when it names none, such as `kombi image` and `ctr`.
func setDefaultSnapshotter(ctx context.Context, client *containerd.Client, namespace, snapshotter string) error {
	const label = "containerd.io/defaults/snapshotter"
	store := client.NamespaceService()
	have, err := store.Labels(ctx, namespace)
	if err == nil && have[label] == snapshotter {
		return nil
	}
	if err != nil {
		return store.Create(ctx, namespace, map[string]string{label: snapshotter})
	}
	return store.SetLabel(ctx, namespace, label, snapshotter)
}
