package payload

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
)

// Compressor turns the bytes of one frame into exactly one zstd frame with a
// window of at most MaxWindow bytes. It is called from several goroutines.
type Compressor func(raw []byte) ([]byte, error)

// MaxWindow bounds what unpacking one frame may need for its window, in bytes.
const MaxWindow = 32 << 20

// Write writes launcher, padding and a payload of the programs at paths to w.
// The programs keep their base names and are executable for everyone.
func Write(w io.Writer, launcher string, paths []string, compress Compressor) (err error) {
	exe, err := os.Open(launcher)
	if err != nil {
		return err
	}
	defer exe.Close()
	end, err := elfEnd(exe)
	if err != nil {
		return fmt.Errorf("%s: %w", launcher, err)
	}
	st, err := exe.Stat()
	if err != nil {
		return err
	}
	// Appended bytes would be taken for the payload.
	if start(st.Size()) != start(end) {
		return fmt.Errorf("%s has %d bytes after its end as an ELF file: build it with -ldflags '-s -w'", launcher, st.Size()-end)
	}

	files := make([]File, len(paths))
	var packed [][]byte
	for i, path := range paths {
		f, frames, err := packFile(path, compress)
		if err != nil {
			return fmt.Errorf("pack %s: %w", path, err)
		}
		files[i] = f
		packed = append(packed, frames...)
	}
	index := encodeIndex(files)
	h := header{indexSize: uint32(len(index)), indexSum: sha256.Sum256(index)}
	h.size = headerSize + int64(len(index))
	for _, b := range packed {
		h.size += int64(len(b))
	}

	if _, err := io.Copy(w, exe); err != nil {
		return err
	}
	for _, b := range append([][]byte{make([]byte, start(end)-st.Size()), h.bytes(), index}, packed...) {
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func packFile(path string, compress Compressor) (File, [][]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return File{}, nil, err
	}
	f := File{Name: filepath.Base(path), Mode: 0o755, Size: int64(len(raw)), filter: filterFor(raw)}
	n := (len(raw) + FrameSize - 1) / FrameSize
	f.frames = make([]frame, n)
	packed := make([][]byte, n)
	errs := make([]error, n)
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i := range n {
		part := raw[i*FrameSize : min((i+1)*FrameSize, len(raw))]
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			sum := sha256.Sum256(part)
			f.filter.encode(part, int64(i)*FrameSize)
			packed[i], errs[i] = compress(part)
			f.frames[i] = frame{packed: int64(len(packed[i])), size: int64(len(part)), sum: sum}
		})
	}
	wg.Wait()
	return f, packed, errors.Join(errs...)
}
