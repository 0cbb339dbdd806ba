package payload

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrDamaged is wrapped by every error that a new copy of the kombi file would
// cure.
var ErrDamaged = errors.New("this kombi file is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w (%s): download it again", ErrDamaged, fmt.Sprintf(format, args...))
}

// Payload is an open payload. It reads from the executable that it was opened
// from, so that one must stay open.
type Payload struct {
	// Hash names the content: two payloads with the same hash unpack to the
	// same bytes. It is 32 hexadecimal digits, the name of the version's
	// folder below <data-dir>/bin.
	Hash string
	// Files are the programs in the payload, in the order of the index.
	Files []File

	r      io.ReaderAt
	frames int64 // offset of the first frame in r
}

// Size returns the number of bytes that the files have when unpacked.
func (p *Payload) Size() int64 {
	var n int64
	for _, f := range p.Files {
		n += f.Size
	}
	return n
}

// Open reads and verifies the header and the index behind the executable exe;
// it does not read the frames. The error of a file that was cut off says how
// much of it is there.
func Open(exe *os.File) (*Payload, error) {
	st, err := exe.Stat()
	if err != nil {
		return nil, err
	}
	return open(exe, st.Size())
}

func open(r io.ReaderAt, size int64) (*Payload, error) {
	end, err := elfEnd(r)
	if err != nil {
		return nil, damaged("its program headers cannot be read: %v", err)
	}
	base := start(end)
	raw := make([]byte, headerSize)
	if _, err := r.ReadAt(raw, base); errors.Is(err, io.EOF) {
		return nil, damaged("the payload is missing: the file ends after %s", Bytes(size))
	} else if err != nil {
		return nil, fmt.Errorf("cannot read this kombi file: %w", err)
	}
	h, err := parseHeader(raw)
	if err != nil {
		return nil, damaged("the payload's header is not valid")
	}
	if got := size - base; got < h.size {
		return nil, damaged("payload is %s of %s", Bytes(got), Bytes(h.size))
	}
	index := make([]byte, h.indexSize)
	if _, err := r.ReadAt(index, base+headerSize); err != nil {
		return nil, fmt.Errorf("cannot read this kombi file: %w", err)
	}
	sum := sha256.Sum256(index)
	if sum != h.indexSum {
		return nil, damaged("the payload's index does not match its checksum")
	}
	first := base + headerSize + int64(h.indexSize)
	files, err := parseIndex(bytes.NewReader(index), base+h.size-first)
	if err != nil {
		return nil, damaged("%v", err)
	}
	return &Payload{Hash: hex.EncodeToString(sum[:16]), Files: files, r: r, frames: first}, nil
}

// Bytes prints a number of bytes the way that people read it: 12 MB.
func Bytes(n int64) string {
	switch {
	case n >= 10_000_000:
		return fmt.Sprintf("%d MB", (n+500_000)/1_000_000)
	case n >= 1_000_000:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1000:
		return fmt.Sprintf("%d kB", (n+500)/1000)
	}
	return fmt.Sprintf("%d bytes", n)
}
