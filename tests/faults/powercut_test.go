package faults

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPowerCut takes the power away from the disk of the datastore under a
// write load: what the kernel had not yet sent to the disk is lost, together
// with everything in memory. Each write that was acknowledged before has to be
// there afterwards.
func TestPowerCut(t *testing.T) {
	d := newDisk(t, "power", filepath.Join(dataDir("power"), "server", "db"), 96)
	k := newServer(t, "power")
	t.Logf("node Ready after %s", start(t, k).Round(time.Millisecond))
	w := startWriters(t, k.Config, k.Namespace(t, "writes", nil))

	cuts, objects := max(3, rounds(t)/5), 0
	for cut := range cuts {
		if err := w.waitAcknowledged(200); err != nil {
			t.Fatalf("cut %d: %v", cut, err)
		}
		time.Sleep(rand.N(200 * time.Millisecond)) // somewhere in a transaction
		pause(t, k.PID())
		image := d.asOnDisk(t)
		held := w.hold() // and none of them overwrites what is to be verified
		k.Kill(t)
		<-held
		d.replace(t, image)
		checkCopy(t, databaseFile(k))
		took := start(t, k)

		var problems []string
		objects, problems = w.verify(k.Client, true)
		w.release()
		for _, p := range problems {
			t.Errorf("cut %d: %s", cut, p)
		}
		if t.Failed() {
			t.FailNow()
		}
		t.Logf("cut %d: Ready after %s, %d writes acknowledged so far", cut, took.Round(time.Millisecond), w.acknowledged.Load())
	}
	t.Logf("%d power cuts, %d writes acknowledged and kept, %d objects", cuts, w.acknowledged.Load(), objects)
}

// asOnDisk returns what the disk holds at one moment. The process that writes
// to it is paused; the kernel may still be writing, so it is read until two
// readings are the same.
func (d *disk) asOnDisk(t *testing.T) []byte {
	t.Helper()
	var last []byte
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		now, err := os.ReadFile(d.image)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(last, now) {
			return now
		}
		last = now
	}
	t.Fatal("the disk is never quiet")
	return nil
}

// replace mounts a disk with the content image in the place of this one, as
// after a reboot: the file system plays its journal back.
func (d *disk) replace(t *testing.T, image []byte) {
	t.Helper()
	if err := unix.Unmount(d.dir, 0); err != nil {
		t.Fatalf("unmount %s: %v", d.dir, err)
	}
	if err := os.WriteFile(d.image, image, 0o600); err != nil {
		t.Fatal(err)
	}
	d.mount(t)
}
