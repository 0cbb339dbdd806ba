package badinput

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// TestPayload has rows about the one file itself and about unpacking it.
func TestPayload(t *testing.T) {
	if dir, err := unpacked(); err != nil {
		t.Fatal(err)
	} else if dir == "" {
		t.Skip("the program under test has no payload")
	}
	info, err := os.Stat(harness.Binary())
	must(t, err)
	size := info.Size()
	for _, row := range []struct {
		name   string
		length int64                           // of the copy; 0 is all of it
		change func(t *testing.T, f *os.File)  // of the copy
		mounts func(t *testing.T, data string) // as the data directory
		want   []string
	}{
		{name: "payload cut off", length: size / 2, want: []string{"this kombi file is damaged", "payload is ", "download it again"}},
		{name: "last byte missing", length: size - 1, want: []string{"this kombi file is damaged", "download it again"}},
		{name: "bytes changed in the payload", change: func(t *testing.T, f *os.File) {
			_, err := f.WriteAt(make([]byte, 4096), size/2)
			must(t, err)
		}, want: []string{"this kombi file is damaged", "download it again"}},
		{name: "read-only data directory", mounts: func(t *testing.T, data string) { mount(t, "tmpfs", data, unix.MS_RDONLY, "") },
			want: []string{"read-only file system", "--data-dir"}},
		{name: "no room to unpack", mounts: func(t *testing.T, data string) { mount(t, "tmpfs", data, 0, "size=20m") },
			want: []string{"space", "--data-dir"}},
		{name: "noexec data directory", mounts: func(t *testing.T, data string) { mount(t, "tmpfs", data, unix.MS_NOEXEC, "size=600m") },
			want: []string{"noexec", "--data-dir"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			file := harness.Binary()
			if row.length != 0 || row.change != nil {
				file = filepath.Join(dir, "kombi")
				duplicate(t, harness.Binary(), file, row.length, row.change)
			}
			data := filepath.Join(dir, "data")
			must(t, os.Mkdir(data, 0o755))
			s := start{path: file, env: environment(), args: []string{"server", "--config=" + emptyFile(t), "--data-dir=" + data}}
			if row.mounts != nil {
				s.mounts = func(t *testing.T) { row.mounts(t, data) }
			}
			run(t, s).refused(t, row.want...)
			if left, _ := filepath.Glob(filepath.Join(data, "bin", "*", "*")); len(left) > 0 {
				t.Errorf("half-written programs were left: %v", left)
			}
		})
	}
}

func duplicate(t *testing.T, from, to string, length int64, change func(*testing.T, *os.File)) {
	t.Helper()
	in, err := os.Open(from)
	must(t, err)
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_RDWR, 0o755)
	must(t, err)
	defer func() { _ = out.Close() }() // before it is executed
	_, err = io.Copy(out, in)
	must(t, err)
	if length > 0 {
		must(t, out.Truncate(length))
	}
	if change != nil {
		change(t, out)
	}
}
