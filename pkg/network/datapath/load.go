// Package datapath loads the eBPF programs, keeps them attached and fills their maps.
// It knows addresses, devices and frontends, but nothing of Kubernetes.
//
// Below the pin directory there is one directory of maps for each schema and one
// of links for all. Links outlive the process, so traffic flows while it
// restarts; the new process gives them its programs.
package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/network/bpf"
)

// schema names the layout of the maps. Change it with any incompatible change of types.h.
const schema = "v2"

// Options configure Load.
type Options struct {
	Log *slog.Logger
	// PinDir is a directory on a bpf file system. Empty means that nothing is
	// pinned: everything ends with the process.
	PinDir string
	// NoTCX attaches by tc clsact even where the kernel has tcx.
	NoTCX bool
	// Flows is the number of flows to remember; 0 derives it from the machine's memory.
	Flows int
}

// Datapath is the loaded data plane. Its methods may be used concurrently.
type Datapath struct {
	log    *slog.Logger
	pinDir string
	tcx    bool
	fresh  bool
	objs   bpf.KombiObjects

	mu       sync.Mutex
	links    map[string]link.Link // only those that are not pinned
	services *ServiceMaps
	policy   *PolicyMaps

	endpoints sync.Mutex // a value of the map is read and written by two owners
}

// Load loads the programs and creates the maps or takes over those of the
// process before. Nothing is attached yet.
func Load(opts Options) (*Datapath, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		opts.Log.Debug("locked memory stays limited", "err", err)
	}
	spec, err := bpf.LoadKombi()
	if err != nil {
		return nil, fmt.Errorf("cannot read the network programs: %w", err)
	}
	if err := configure(spec); err != nil {
		return nil, err
	}
	size(spec, opts.Flows)

	d := &Datapath{log: opts.Log, pinDir: opts.PinDir, tcx: !opts.NoTCX, fresh: true, links: map[string]link.Link{}}
	reuse := map[string]*ebpf.Map{}
	defer func() {
		for _, m := range reuse {
			_ = m.Close()
		}
	}()
	if d.pinDir != "" {
		for _, dir := range []string{d.MapDir(), d.linkDir()} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, fmt.Errorf("cannot pin network maps: %w", err)
			}
		}
		if reuse, err = d.pinned(spec); err != nil {
			return nil, err
		}
		d.fresh = len(reuse) == 0
	}

	err = spec.LoadAndAssign(&d.objs, &ebpf.CollectionOptions{MapReplacements: reuse})
	if err != nil {
		return nil, fmt.Errorf("cannot load the network programs: %w%s", err, hint(err))
	}
	if d.pinDir != "" {
		for name, m := range d.maps() {
			if _, ok := reuse[name]; ok {
				continue
			}
			if err := m.Pin(filepath.Join(d.MapDir(), name)); err != nil {
				_ = d.Close()
				return nil, fmt.Errorf("cannot pin network map %s: %w", name, err)
			}
		}
	}
	d.services = newServiceMaps(&d.objs.KombiMaps)
	if d.policy, err = newPolicyMaps(&d.objs.KombiMaps); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// TakeoverPending reports whether programs of another schema are attached and still
// serve from their own maps. Fill the new maps before attaching, and call
// DropOldSchemas after it.
func (d *Datapath) TakeoverPending() bool {
	return len(d.oldSchemas()) > 0 || d.fresh && d.hasLinks()
}

// Close frees the process's handles. What is pinned stays in place.
func (d *Datapath) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, l := range d.links {
		errs = append(errs, l.Close())
	}
	clear(d.links)
	return errors.Join(append(errs, d.objs.Close())...)
}

// DropOldSchemas removes the maps that programs before this schema used. Call it
// once all links run the new programs.
func (d *Datapath) DropOldSchemas() {
	for _, dir := range d.oldSchemas() {
		_ = os.RemoveAll(dir)
	}
}

func (d *Datapath) oldSchemas() []string {
	if d.pinDir == "" {
		return nil
	}
	dirs, _ := filepath.Glob(filepath.Join(d.pinDir, "maps-*"))
	return slices.DeleteFunc(dirs, func(dir string) bool { return dir == d.MapDir() })
}

// hasLinks reports whether programs of a process before are attached.
func (d *Datapath) hasLinks() bool {
	if d.pinDir == "" {
		return false
	}
	entries, err := os.ReadDir(d.linkDir())
	return err == nil && len(entries) > 0
}

// MapDir is where the maps are pinned.
func (d *Datapath) MapDir() string { return filepath.Join(d.pinDir, "maps-"+schema) }

func (d *Datapath) linkDir() string { return filepath.Join(d.pinDir, "links") }

// pinned opens the maps of the process before, and forgets those that do not fit.
func (d *Datapath) pinned(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	out := map[string]*ebpf.Map{}
	for name, ms := range spec.Maps {
		if ms.Flags&unix.BPF_F_RDONLY_PROG != 0 || name[0] == '.' {
			continue
		}
		path := filepath.Join(d.MapDir(), name)
		m, err := ebpf.LoadPinnedMap(path, nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return out, fmt.Errorf("cannot open pinned network map %s: %w; remove %s to start afresh", name, err, d.pinDir)
		}
		ms.MaxEntries = m.MaxEntries() // sizes may have been chosen for other memory
		if err := ms.Compatible(m); err != nil {
			d.log.Warn("pinned network map has another layout and is replaced", "map", name, "err", err)
			_ = m.Close()
			_ = os.Remove(path)
			continue
		}
		out[name] = m
	}
	return out, nil
}

func (d *Datapath) maps() map[string]*ebpf.Map {
	m := &d.objs.KombiMaps
	return map[string]*ebpf.Map{
		bpf.KombiMapAffinities: m.Affinities, bpf.KombiMapDevices: m.Devices, bpf.KombiMapDrops: m.Drops,
		bpf.KombiMapEndpoints: m.Endpoints, bpf.KombiMapFlows: m.Flows, bpf.KombiMapFragments: m.Fragments,
		bpf.KombiMapLocals: m.Locals, bpf.KombiMapMembers: m.Members, bpf.KombiMapPrefixes: m.Prefixes,
		bpf.KombiMapServices: m.Services, bpf.KombiMapSlots: m.Slots, bpf.KombiMapSockets: m.Sockets,
		bpf.KombiMapClasses: m.Classes, bpf.KombiMapRules: m.Rules, bpf.KombiMapConnections: m.Connections,
		bpf.KombiMapCounters: m.Counters, bpf.KombiMapRemotes: m.Remotes, bpf.KombiMapSources: m.Sources,
	}
}

// configure sets what the programs take as constants.
func configure(spec *ebpf.CollectionSpec) error {
	cookie, err := netnsCookie()
	if err == nil {
		err = spec.Variables[bpf.KombiVarHostNetnsCookie].Set(cookie)
	} else if errors.Is(err, unix.ENOPROTOOPT) {
		err = nil // before kernel 5.14: the programs assume the initial namespace
	}
	if err != nil {
		return fmt.Errorf("cannot identify the host's network namespace: %w", err)
	}
	have := features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnSetRetval) == nil
	return spec.Variables[bpf.KombiVarHaveSetRetval].Set(have)
}

// netnsCookie returns the number by which programs know this network namespace.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// size chooses how much the node remembers: about 1/2000 of the memory for flows.
func size(spec *ebpf.CollectionSpec, flows int) {
	const flowBytes = 180 // key, value and what the kernel adds to an entry
	if flows == 0 {
		var si unix.Sysinfo_t
		if unix.Sysinfo(&si) == nil {
			flows = int(si.Totalram * uint64(si.Unit) / 2000 / flowBytes)
		}
		flows = min(max(flows, 16384), 262144)
	}
	spec.Maps[bpf.KombiMapFlows].MaxEntries = uint32(flows)
	spec.Maps[bpf.KombiMapConnections].MaxEntries = uint32(max(flows/2, 8192))
	spec.Maps[bpf.KombiMapSockets].MaxEntries = uint32(max(flows/4, 4096))
	spec.Maps[bpf.KombiMapAffinities].MaxEntries = uint32(max(flows/8, 4096))
}

func hint(err error) string {
	if errors.Is(err, unix.EPERM) {
		return "; Kombi needs the capabilities BPF and NET_ADMIN (or SYS_ADMIN), and unprivileged containers do not have them"
	}
	return ""
}
