package payload

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// maxWorkers bounds the memory of an unpack: each holds one unpacked frame,
// its compressed bytes and a decoder, about 25 MB together.
const maxWorkers = 4

// unpack writes every file of the payload into the existing empty folder dir.
// Each frame is verified before it is written. progress, unless nil, is called
// with the number of bytes done so far, from several goroutines.
func (p *Payload) unpack(ctx context.Context, dir string, progress func(done int64)) (err error) {
	type job struct {
		out    *os.File
		filter filter
		frame  frame
	}
	var jobs []job
	for _, f := range p.Files {
		out, err := os.OpenFile(filepath.Join(dir, f.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
		// Full disk: better known now than in the middle.
		if err := unix.Fallocate(int(out.Fd()), 0, 0, f.Size); err != nil && !errors.Is(err, unix.EOPNOTSUPP) && f.Size > 0 {
			return fmt.Errorf("reserve %s for %s: %w", Bytes(f.Size), f.Name, err)
		}
		if err := out.Chmod(f.Mode.Perm()); err != nil {
			return err
		}
		for _, fr := range f.frames {
			jobs = append(jobs, job{out, f.filter, fr})
		}
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), maxWorkers, len(jobs)) {
		wg.Go(func() {
			d, err := newFrameReader(p.r)
			if err != nil {
				cancel(err)
				return
			}
			defer d.close()
			for i := int(next.Add(1)) - 1; i < len(jobs) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				j := jobs[i]
				raw, err := d.read(p.frames, j.frame, j.filter)
				if err == nil {
					_, err = j.out.WriteAt(raw, j.frame.start)
				}
				if err != nil {
					cancel(err)
					return
				}
				if n := done.Add(j.frame.size); progress != nil {
					progress(n)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// frameReader unpacks one frame after another with the same buffers.
type frameReader struct {
	r           io.ReaderAt
	decoder     *zstd.Decoder
	packed, raw []byte
}

func newFrameReader(r io.ReaderAt) (*frameReader, error) {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxMemory(FrameSize),
		zstd.WithDecoderMaxWindow(MaxWindow))
	return &frameReader{r: r, decoder: d}, err
}

func (d *frameReader) close() { d.decoder.Close() }

// read returns the verified bytes of a frame; they are valid until the next call.
func (d *frameReader) read(base int64, f frame, filter filter) ([]byte, error) {
	if int64(cap(d.packed)) < f.packed {
		d.packed = make([]byte, f.packed)
	}
	if d.raw == nil {
		d.raw = make([]byte, 0, FrameSize)
	}
	packed := d.packed[:f.packed]
	if _, err := d.r.ReadAt(packed, base+f.offset); err != nil {
		return nil, fmt.Errorf("cannot read this kombi file: %w", err)
	}
	raw, err := d.decoder.DecodeAll(packed, d.raw[:0])
	if err != nil {
		return nil, damaged("its payload cannot be unpacked: %v", err)
	}
	filter.decode(raw, f.start)
	if int64(len(raw)) != f.size || sha256.Sum256(raw) != f.sum {
		return nil, damaged("a part of its payload does not match its checksum")
	}
	return raw, nil
}

// verify reads the unpacked files in dir and compares them with the index.
func (p *Payload) verify(dir string) error {
	type job struct {
		in    *os.File
		frame frame
	}
	var jobs []job
	for _, f := range p.Files {
		in, err := os.OpenFile(filepath.Join(dir, f.Name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		defer in.Close()
		for _, fr := range f.frames {
			jobs = append(jobs, job{in, fr})
		}
	}
	var next atomic.Int64
	var bad atomic.Bool
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), maxWorkers, len(jobs)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(jobs) && !bad.Load(); i = int(next.Add(1)) - 1 {
				j := jobs[i]
				h := sha256.New()
				n, err := io.Copy(h, io.NewSectionReader(j.in, j.frame.start, j.frame.size))
				if err != nil || n != j.frame.size || [sha256.Size]byte(h.Sum(nil)) != j.frame.sum {
					bad.Store(true)
				}
			}
		})
	}
	wg.Wait()
	if bad.Load() {
		return errors.New("an unpacked file does not match its checksum")
	}
	return nil
}
