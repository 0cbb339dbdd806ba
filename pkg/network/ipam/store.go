package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kombi-k8s/kombi/pkg/network/services"
)

// Record says who has an address and how it is wired.
type Record struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	// Netns is the path of the pod's network namespace.
	Netns string `json:"netns"`
	// Namespace and Pod name the pod, for people.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Addrs has one address of each family that the node's pods have.
	Addrs []netip.Addr `json:"addrs"`
	// HostDevice is the host's side of the pair.
	HostDevice string `json:"hostDevice"`
	// MAC and HostMAC are the addresses of the two sides.
	MAC     string `json:"mac"`
	HostMAC string `json:"hostMAC"`
	MTU     int    `json:"mtu"`
	// HostPorts are the pod's ports that the node answers on.
	HostPorts []services.HostPort `json:"hostPorts,omitempty"`
}

// Key identifies the attachment.
func (r *Record) Key() string { return Key(r.ContainerID, r.IfName) }

// Key returns the name under which an attachment is stored.
func Key(containerID, ifName string) string { return containerID + "-" + ifName }

// Store keeps one file for each record. A record is there completely or not at
// all, also after a crash or a power failure.
type Store struct{ dir string }

// OpenStore opens or creates the store in dir.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot keep pod addresses: %w", err)
	}
	return &Store{dir: dir}, nil
}

// Load returns all records. A file that cannot be read as one is put aside under
// a name ending in ".bad" and reported in the error, which does not make the records invalid.
func (s *Store) Load() ([]*Record, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read pod addresses: %w", err)
	}
	var out []*Record
	var bad []error
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		switch {
		case strings.HasSuffix(e.Name(), ".tmp"):
			_ = os.Remove(path) // a write that a crash ended; nobody was told of it
			continue
		case !strings.HasSuffix(e.Name(), ".json"):
			continue
		}
		raw, err := os.ReadFile(path)
		r := &Record{}
		if err == nil {
			err = json.Unmarshal(raw, r)
		}
		if err == nil && (!valid(r.Addrs) || r.ContainerID == "" || r.HostDevice == "") {
			err = errors.New("incomplete")
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("pod record %s is damaged and was put aside: %w", path, err))
			_ = os.Rename(path, path+".bad")
			continue
		}
		out = append(out, r)
	}
	return out, errors.Join(bad...)
}

// Put writes a record durably.
func (s *Store) Put(r *Record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := writeDurably(s.path(r.Key()), raw); err != nil {
		return fmt.Errorf("cannot record the pod's addresses %s: %w", r.Addrs, err)
	}
	return nil
}

// Delete removes a record; one that is not there is fine.
func (s *Store) Delete(key string) error {
	if err := os.Remove(s.path(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot forget pod address: %w", err)
	}
	return nil
}

func valid(addrs []netip.Addr) bool {
	return len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !a.IsValid() })
}

// Last returns the addresses that were handed out last, if that is known.
func (s *Store) Last() (out []netip.Addr) {
	raw, err := os.ReadFile(filepath.Join(s.dir, "last"))
	if err != nil {
		return nil
	}
	for _, line := range strings.Fields(string(raw)) {
		if a, err := netip.ParseAddr(line); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// SetLast notes the addresses that were handed out last. They are only a hint, so they are not made durable.
func (s *Store) SetLast(addrs []netip.Addr) {
	var text strings.Builder
	for _, a := range addrs {
		text.WriteString(a.String() + "\n")
	}
	_ = os.WriteFile(filepath.Join(s.dir, "last"), []byte(text.String()), 0o600)
}

func (s *Store) path(key string) string {
	return filepath.Join(s.dir, strings.NewReplacer("/", "_", "..", "_").Replace(key)+".json")
}

func writeDurably(path string, raw []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return dir.Sync()
}
