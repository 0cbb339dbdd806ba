package payload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// fakeELF is the smallest file that has the header of a 64-bit ELF program.
func fakeELF() []byte {
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01")
	return b
}

func compress(raw []byte) ([]byte, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return e.EncodeAll(raw, nil), e.Close()
}

// pack writes a kombi file with the given programs and returns its bytes.
func pack(t *testing.T, programs map[string][]byte) []byte {
	t.Helper()
	dir := t.TempDir()
	launcher := filepath.Join(dir, "launcher")
	write(t, launcher, fakeELF())
	var paths []string
	for name, content := range programs {
		paths = append(paths, filepath.Join(dir, name))
		write(t, paths[len(paths)-1], content)
	}
	slices.Sort(paths)
	var b bytes.Buffer
	if err := Write(&b, launcher, paths, compress); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

func openBytes(t *testing.T, b []byte) *Payload {
	t.Helper()
	p, err := open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// noise does not compress and, with FrameSize+1 bytes, needs two frames.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func ensure(t *testing.T, p *Payload, dataDir string) string {
	t.Helper()
	dir, lock, err := p.Ensure(context.Background(), dataDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	must(t, lock.Close()) // as an exec does
	return dir
}

func TestUnpackGivesBackWhatWasPacked(t *testing.T) {
	programs := map[string][]byte{
		"kombi": noise(FrameSize + 1), // two frames, the second of one byte
		"runc":  []byte("small"),
		"pause": {},
	}
	p := openBytes(t, pack(t, programs))
	if len(p.Files) != 3 || p.Size() != FrameSize+6 {
		t.Fatalf("payload has %d files and %d bytes", len(p.Files), p.Size())
	}
	var last int64
	var mu sync.Mutex
	dataDir := t.TempDir()
	dir, lock, err := p.Ensure(context.Background(), dataDir, func(done, total int64) {
		mu.Lock()
		last = max(last, done)
		mu.Unlock()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if last != p.Size() {
		t.Errorf("progress ended at %d of %d", last, p.Size())
	}
	if want := filepath.Join(dataDir, "bin", p.Hash); dir != want {
		t.Errorf("unpacked to %s, want %s", dir, want)
	}
	for name, want := range programs {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs (%v)", name, err)
		}
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode() != 0o755 {
			t.Errorf("%s has mode %v (%v)", name, st.Mode(), err)
		}
	}
	entries, _ := os.ReadDir(filepath.Join(dataDir, "bin"))
	if len(entries) != 2 { // the lock and the version
		t.Errorf("left over: %v", entries)
	}
}

func TestDamagedFilesSayWhatIsWrong(t *testing.T) {
	good := pack(t, map[string][]byte{"kombi": noise(3_000_000), "runc": []byte("small")})
	flip := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 0xff
		return b
	}
	tests := []struct {
		name string
		file []byte
		want string
	}{
		{"cut off in the frames", good[:1_200_000], "payload is 1.2 MB of 3.0 MB"},
		{"one byte short", good[:len(good)-1], "payload is"},
		{"cut off in the header", good[:alignment+10], "payload is missing"},
		{"only the launcher", good[:64], "payload is missing"},
		{"not a program", []byte(strings.Repeat("x", 5000)), "program headers"},
		{"empty", nil, "program headers"},
		{"wrong magic", flip(alignment), "header is not valid"},
		{"wrong index", flip(alignment + headerSize + 3), "index does not match"},
		{"wrong byte in a frame", flip(len(good) - 100_000), "payload"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dataDir := t.TempDir()
			p, err := open(bytes.NewReader(tt.file), int64(len(tt.file)))
			if err == nil {
				_, _, err = p.Ensure(context.Background(), dataDir, nil)
			}
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "download it again") {
				t.Errorf("error %q does not say %q and what to do", err, tt.want)
			}
			if left, _ := filepath.Glob(filepath.Join(dataDir, "bin", "[^.]*")); len(left) != 0 || temps(dataDir) != 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

func TestTheErrorOfATruncatedDownloadReadsAsOneSentence(t *testing.T) {
	b := pack(t, map[string][]byte{"kombi": noise(49_000_000)})
	b = b[:12_000_000]
	_, err := open(bytes.NewReader(b), int64(len(b)))
	want := "this kombi file is damaged (payload is 12 MB of 49 MB): download it again"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestParallelFirstStartsUnpackOnce(t *testing.T) {
	p := openBytes(t, pack(t, map[string][]byte{"kombi": noise(2_000_000)}))
	dataDir := t.TempDir()
	inodes := make([]uint64, 8)
	var wg sync.WaitGroup
	for i := range inodes {
		wg.Go(func() {
			dir, lock, err := p.Ensure(context.Background(), dataDir, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer lock.Close()
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(dir, "kombi"), &st); err != nil {
				t.Error(err)
			}
			inodes[i] = st.Ino
		})
	}
	wg.Wait()
	if len(slices.Compact(inodes)) != 1 {
		t.Errorf("unpacked more than once: inodes %v", inodes)
	}
}

func TestWhatDoesNotMatchIsUnpackedAgain(t *testing.T) {
	want := noise(100_000)
	p := openBytes(t, pack(t, map[string][]byte{"kombi": want}))
	tests := []struct {
		name  string
		spoil func(t *testing.T, dir string)
		again bool
	}{
		{"untouched", func(*testing.T, string) {}, false},
		{"a file is missing", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "kombi"))) }, true},
		{"a file is short", func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, "kombi"), 10)) }, true},
		{"a file is not executable", func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "kombi"), 0o644)) }, true},
		{"a file is a link", func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, "kombi"), filepath.Join(dir, "elsewhere")))
			must(t, os.Symlink("elsewhere", filepath.Join(dir, "kombi")))
		}, true},
		{"the marker is missing", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, markerName))) }, true},
		{"the machine restarted, the files are whole", func(t *testing.T, dir string) { must(t, mark(dir, "another boot")) }, false},
		{"the machine lost power before the disk had it all", func(t *testing.T, dir string) {
			must(t, mark(dir, "another boot"))
			write(t, filepath.Join(dir, "kombi"), make([]byte, len(want)))
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dataDir := t.TempDir()
			dir := ensure(t, p, dataDir)
			before, err := os.Stat(filepath.Join(dir, "kombi"))
			must(t, err)
			tt.spoil(t, dir)
			ensure(t, p, dataDir)
			after, err := os.Stat(filepath.Join(dir, "kombi"))
			must(t, err)
			if again := !os.SameFile(before, after); again != tt.again {
				t.Errorf("unpacked again: %v, want %v", again, tt.again)
			}
			if got, err := os.ReadFile(filepath.Join(dir, "kombi")); err != nil || !bytes.Equal(got, want) {
				t.Errorf("kombi is not what was packed (%v)", err)
			}
		})
	}
}

func temps(dataDir string) int {
	left, _ := filepath.Glob(filepath.Join(dataDir, "bin", tempPrefix+"*"))
	return len(left)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestARestartIsVerifiedOnceAndThenRemembered(t *testing.T) {
	p := openBytes(t, pack(t, map[string][]byte{"kombi": noise(1000)}))
	dataDir := t.TempDir()
	dir := ensure(t, p, dataDir)
	must(t, mark(dir, "another boot"))
	if got := p.inspect(dir); got != unsure {
		t.Fatalf("state %v, want unsure", got)
	}
	ensure(t, p, dataDir)
	if marker, _ := os.ReadFile(filepath.Join(dir, markerName)); string(marker) != durable+"\n" {
		t.Errorf("marker is %q", marker)
	}
}

func TestSettleMakesTheFilesDurable(t *testing.T) {
	p := openBytes(t, pack(t, map[string][]byte{"kombi": noise(1000)}))
	dataDir := t.TempDir()
	dir := ensure(t, p, dataDir)
	for range 2 {
		must(t, Settle(dataDir, p.Hash))
		if marker, _ := os.ReadFile(filepath.Join(dir, markerName)); string(marker) != durable+"\n" {
			t.Errorf("marker is %q", marker)
		}
	}
	if err := Settle(dataDir, strings.Repeat("0", 32)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a version that is not there: %v", err)
	}
}

func TestPruneKeepsWhatRuns(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	must(t, err)
	program, err := os.ReadFile(sleep)
	must(t, err)
	dataDir := t.TempDir()
	version := func(content []byte) string {
		p := openBytes(t, pack(t, map[string][]byte{"containerd-shim-runc-v2": content}))
		dir, lock, err := p.Ensure(context.Background(), dataDir, nil)
		must(t, err)
		_ = lock.Close()
		return filepath.Base(dir)
	}
	running, idle, current := version(program), version([]byte("idle")), version([]byte("current"))
	foreign := filepath.Join(dataDir, "bin", "not-a-version")
	must(t, os.Mkdir(foreign, 0o755))

	shim := exec.Command(filepath.Join(dataDir, "bin", running, "containerd-shim-runc-v2"), "60")
	must(t, shim.Start())
	t.Cleanup(func() { _ = shim.Process.Kill(); _ = shim.Wait() })

	removed, err := Prune(dataDir, current)
	if err != nil || !slices.Equal(removed, []string{idle}) {
		t.Errorf("removed %v (%v), want %v", removed, err, idle)
	}
	_ = shim.Process.Kill()
	_ = shim.Wait()
	removed, err = Prune(dataDir, current)
	if err != nil || !slices.Equal(removed, []string{running}) {
		t.Errorf("removed %v (%v), want %v", removed, err, running)
	}
	for _, path := range []string{foreign, BinDir(dataDir, current)} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone", path)
		}
	}
	if removed, err := Prune(dataDir, current); err != nil || len(removed) != 0 {
		t.Errorf("a second run removed %v (%v)", removed, err)
	}
}

func TestAPlaceThatIsNoGoodIsSaidBeforeAnythingIsLeft(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	p := openBytes(t, pack(t, map[string][]byte{"kombi": noise(1000)}))
	for name, tt := range map[string]struct {
		flags uintptr
		want  string
	}{
		"noexec":    {unix.MS_NOEXEC, "mounted noexec"},
		"read-only": {unix.MS_RDONLY, "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			dataDir := t.TempDir()
			if err := unix.Mount("tmpfs", dataDir, "tmpfs", tt.flags, "size=4m"); err != nil {
				t.Skipf("cannot mount a tmpfs here: %v", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dataDir, unix.MNT_DETACH) })
			_, _, err := p.Ensure(context.Background(), dataDir, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "--data-dir") {
				t.Errorf("error %v", err)
			}
			if left, _ := filepath.Glob(filepath.Join(dataDir, "bin", "[^.]*")); len(left) != 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

func TestAFullDiskIsSaidBeforeAnythingIsLeft(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dataDir := t.TempDir()
	if err := unix.Mount("tmpfs", dataDir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dataDir, unix.MNT_DETACH) })
	p := openBytes(t, pack(t, map[string][]byte{"kombi": noise(8_000_000)}))
	_, _, err := p.Ensure(context.Background(), dataDir, nil)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "8.0 MB are needed") || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("error %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dataDir, "bin", "[^.]*")); len(left) != 0 || temps(dataDir) != 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestWriteRefusesALauncherWithSomethingBehindIt(t *testing.T) {
	launcher := filepath.Join(t.TempDir(), "launcher")
	write(t, launcher, append(fakeELF(), make([]byte, 5000)...))
	if err := Write(io.Discard, launcher, nil, compress); err == nil {
		t.Error("no error")
	}
}

func TestElfEndOfARealProgram(t *testing.T) {
	exe, err := os.Open("/proc/self/exe")
	must(t, err)
	defer exe.Close()
	st, err := exe.Stat()
	must(t, err)
	end, err := elfEnd(exe)
	if err != nil || end > st.Size() || end < st.Size()-alignment {
		t.Errorf("end %d of a file of %d bytes (%v)", end, st.Size(), err)
	}
}
