package ipam

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPoolRotates(t *testing.T) {
	p, err := NewPool(netip.MustParsePrefix("10.42.0.0/29"), nil)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := p.Allocate()
	p.Release(first)
	seen := map[netip.Addr]bool{}
	for range 5 {
		a, err := p.Allocate()
		if err != nil {
			t.Fatal(err)
		}
		if a == first {
			t.Fatalf("%s was given away again before all others", a)
		}
		if seen[a] || !p.Prefix().Contains(a) {
			t.Fatalf("%s must not be given away", a)
		}
		seen[a] = true
	}
	if a, err := p.Allocate(); err != nil || a != first {
		t.Errorf("got %v %v, want the freed address at last", a, err)
	}
	if _, err := p.Allocate(); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
}

func TestPoolGoesOnAfterRestart(t *testing.T) {
	p, err := NewPool(netip.MustParsePrefix("10.42.0.0/24"), []netip.Addr{netip.MustParseAddr("10.42.0.254")})
	if err != nil {
		t.Fatal(err)
	}
	p.Reserve(netip.MustParseAddr("10.42.0.1"))
	if a, _ := p.Allocate(); a != netip.MustParseAddr("10.42.0.2") {
		t.Errorf("got %s; the broadcast address and the reserved one must be skipped", a)
	}
}

func TestPoolRefuses(t *testing.T) {
	for _, prefix := range []string{"10.42.0.0/32", "10.42.0.0/31", "10.42.0.1/24"} {
		if _, err := NewPool(netip.MustParsePrefix(prefix), nil); err == nil {
			t.Errorf("%s is accepted", prefix)
		}
	}
	if _, err := NewPool(netip.MustParsePrefix("fd00::/64"), nil); err != nil {
		t.Errorf("IPv6: %v", err)
	}
}

func TestStoreSurvivesDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pods")
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	rec := &Record{ContainerID: "../evil", IfName: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("10.42.0.7"), netip.MustParseAddr("fd42::7")}, HostDevice: "kmb0"}
	if err := s.Put(rec); err != nil {
		t.Fatal(err)
	}
	// What a crash may leave, and what a disk may do.
	for name, content := range map[string]string{"half.json.tmp": "{", "half.json": `{"containerID":`, "other.json": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Load()
	if err == nil {
		t.Error("damage is not reported")
	}
	if len(got) != 1 || !slices.Equal(got[0].Addrs, rec.Addrs) || got[0].Key() != rec.Key() {
		t.Fatalf("got %+v", got)
	}
	if got, err = s.Load(); err != nil || len(got) != 1 {
		t.Errorf("damaged files must be put aside: %v %v", got, err)
	}
	if err := s.Delete(rec.Key()); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(rec.Key()); err != nil {
		t.Errorf("a second delete: %v", err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(dir)); len(entries) != 1 {
		t.Errorf("something was written outside of the store: %v", entries)
	}
	s.SetLast(rec.Addrs)
	if !slices.Equal(s.Last(), rec.Addrs) {
		t.Errorf("last is %v", s.Last())
	}
}
