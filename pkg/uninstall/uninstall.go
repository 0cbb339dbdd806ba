// Package uninstall takes Kombi off a machine and ends the pods of a stopped
// Kombi. It works from what the kernel and the file system say, never from what
// Kombi remembers, so it also works when everything else is dead; every step
// can be repeated. It touches only what belongs to one data directory: the
// processes that run from it or in its cgroups, the mounts and files below it,
// and the service that starts it. It deletes nothing behind a mount point.
package uninstall

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kombi-k8s/kombi/pkg/payload"
)

// Options names what belongs to the Kombi that is removed. Paths are absolute.
type Options struct {
	// DataDir holds the state: /var/lib/kombi.
	DataDir string
	// RunDir holds sockets and mounts: /run/kombi.
	RunDir string
	// ContainerdState is containerd's state folder; its socket is in it. Empty
	// means <RunDir>/containerd.
	ContainerdState string
	// CgroupRoot is the cgroup of the pods, as a path inside each hierarchy:
	// /kombi. Empty means that there is none.
	CgroupRoot string
	// PodLogs is the kubelet's folder of pod logs. Outside of DataDir only the
	// logs of this data directory's pods are removed.
	PodLogs string
	// ConfigDir is /etc/kombi, LogDir /var/log, BinDir the folder of the kombi
	// file and its links. These are shared by all Kombis of a machine and removed
	// with the last one. Empty means the default; for BinDir the folder of the
	// file that the service starts, or else /usr/local/bin.
	ConfigDir, LogDir, BinDir string
	// Root is prepended to the folders in which services are defined; it is
	// empty except in tests.
	Root string
	// Grace is how long the processes of pods have between SIGTERM and SIGKILL.
	// 0 means 10 seconds, negative none.
	Grace time.Duration
	// Yes skips the question; In is where the answer is read.
	Yes bool
	In  io.Reader
	// Out gets one line for each step.
	Out io.Writer
	// NetworkCleanup, unless nil, removes what the data plane left in the
	// kernel: links, programs, pinned maps. It runs after the pods have ended.
	NetworkCleanup func(context.Context) error
}

const (
	defaultGrace = 10 * time.Second
	// processTimeout is what a process gets to die after SIGKILL, and the
	// server after SIGTERM.
	processTimeout = 30 * time.Second
)

func (o Options) withDefaults() Options {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	o.DataDir, o.RunDir = filepath.Clean(o.DataDir), filepath.Clean(o.RunDir)
	def(&o.ContainerdState, filepath.Join(o.RunDir, "containerd"))
	def(&o.PodLogs, "/var/log/pods")
	def(&o.ConfigDir, "/etc/kombi")
	def(&o.LogDir, "/var/log")
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	return o
}

// ErrNotConfirmed is returned when the question was not answered with yes.
var ErrNotConfirmed = errors.New("nothing was removed: answer with yes, or use --yes")

// Run removes the Kombi that o describes. It goes on after a step that fails;
// the error then lists everything that is left and why. Running it again
// continues; running it where nothing is left does nothing and succeeds.
func Run(ctx context.Context, o Options) error {
	o = o.withDefaults()
	if os.Geteuid() != 0 {
		return errors.New("removing Kombi needs root: use sudo kombi uninstall")
	}
	if err := guard(o); err != nil {
		return err
	}
	own, others := services(o)
	if o.BinDir == "" {
		o.BinDir = binDirOf(own)
	}
	// The last Kombi takes the shared files with it, but one that was only tried
	// out in some other folder does not.
	whole := len(others) == 0 && (len(own) > 0 || o.DataDir == payload.DefaultDataDir)
	if !o.Yes {
		if err := confirm(o, whole); err != nil {
			return err
		}
	}

	u := &run{Options: o}
	for _, s := range own {
		u.step("stopping "+s.name(), s.stop(ctx))
	}
	u.step("", u.stopServers(ctx))
	stopped, err := StopPods(ctx, o)
	if stopped.Containers > 0 || err != nil {
		u.step(fmt.Sprintf("ended %d containers of %d pods", stopped.Containers, stopped.Pods), err)
	}
	if o.NetworkCleanup != nil {
		u.step("removed the network", o.NetworkCleanup(ctx))
	}
	// First what lies deepest; the bpf and netns mounts are the network's own.
	n, err := unmountBelow(o.DataDir, o.RunDir)
	if n > 0 || err != nil {
		u.step(fmt.Sprintf("unmounted %d file systems", n), err)
	}
	u.step("", removeCgroups(ctx, o.CgroupRoot))

	u.step("", removePodLogs(o))
	for _, dir := range []string{o.RunDir, o.DataDir} {
		// People put the data directory on another disk with a link.
		if real, err := filepath.EvalSymlinks(dir); err == nil && real != dir {
			u.remove(real)
		}
		u.remove(dir)
	}
	if whole {
		u.remove(o.ConfigDir)
		u.removeLinks()
		u.remove(filepath.Join(o.BinDir, "kombi"))
	} else if len(others) > 0 {
		fmt.Fprintf(o.Out, "kept %s and %s: %s uses them\n", filepath.Join(o.BinDir, "kombi"), o.ConfigDir, others[0].name())
	}
	// Last, so that a run that was cut off finds again what was to be removed.
	for _, s := range own {
		u.remove(filepath.Join(o.LogDir, s.name()+".log"))
		u.remove(filepath.Join(o.LogDir, s.name()+".log.1"))
		u.step("removed the service "+s.name(), s.remove(ctx))
	}
	if len(u.failed) > 0 {
		return fmt.Errorf("Kombi is not removed completely; run it again when this is cured:\n%w", errors.Join(u.failed...))
	}
	fmt.Fprintln(o.Out, "Kombi is removed")
	return nil
}

// binDirOf returns the folder of the kombi file that the first service starts.
func binDirOf(own []service) string {
	for _, s := range own {
		if c := s.command(); len(c) > 0 && filepath.IsAbs(c[0]) && filepath.Base(c[0]) == "kombi" {
			return filepath.Dir(c[0])
		}
	}
	return "/usr/local/bin"
}

// run is one Run in progress.
type run struct {
	Options
	failed []error
}

// step reports a finished step; an empty text is for those not worth a line.
func (u *run) step(text string, err error) {
	if err != nil {
		u.failed = append(u.failed, err)
		fmt.Fprintf(u.Out, "failed: %v\n", err)
		return
	}
	if text != "" {
		fmt.Fprintln(u.Out, text)
	}
}

func (u *run) remove(path string) {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return
	}
	kept, err := removeTree(path)
	text := "removed " + path
	for _, k := range kept {
		if k == path {
			text = "emptied " + path + ", which stays because it is a mount point"
		} else {
			fmt.Fprintf(u.Out, "kept %s: it is a mount point, and what is behind it is not Kombi's\n", k)
		}
	}
	u.step(text, err)
}

// removeLinks removes kubectl and the like where they are links to kombi.
func (u *run) removeLinks() {
	entries, _ := os.ReadDir(u.BinDir)
	for _, e := range entries {
		path := filepath.Join(u.BinDir, e.Name())
		target, err := os.Readlink(path)
		if err == nil && (target == "kombi" || target == filepath.Join(u.BinDir, "kombi")) {
			u.step("removed "+path, os.Remove(path))
		}
	}
}

func confirm(o Options, whole bool) error {
	fmt.Fprintf(o.Out, "This ends all pods of this Kombi and deletes its data, volumes and images:\n  %s\n  %s\n", o.DataDir, o.RunDir)
	if whole {
		fmt.Fprintf(o.Out, "  %s\n  %s and the service\n", o.ConfigDir, filepath.Join(o.BinDir, "kombi"))
	}
	fmt.Fprint(o.Out, "Type yes to go on: ")
	if o.In == nil {
		return ErrNotConfirmed
	}
	answer, _ := bufio.NewReader(o.In).ReadString('\n')
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "yes" && a != "y" {
		return ErrNotConfirmed
	}
	return nil
}
