// Package payload is the compressed half of the one file that Kombi is: the
// programs that the launcher unpacks at first start. It owns the format, the
// directory <data-dir>/bin below which they are unpacked, and the rules for
// when a version may be removed. It depends on nothing else of Kombi, because
// the launcher has to start in a few milliseconds.
//
// The file looks like this:
//
//	launcher (ELF) | padding to 4096 | header | index | frames
//
// The header is first so that a file that was cut off still knows how long it
// should have been. The index is text, one line for each file and, below it,
// one for each of its frames:
//
//	file <name> <mode, octal> <size> <filter>
//	frame <compressed size> <size> <SHA-256 of the unpacked bytes>
//
// A frame is one zstd frame of at most FrameSize unpacked bytes. Frames are
// independent: they are compressed and unpacked in parallel, each is verified
// on its own, and memory stays bounded whatever the size of the file.
package payload

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// FrameSize is the unpacked size of every frame but a file's last, in bytes.
const FrameSize = 16 << 20

const (
	magic      = "KOMBI-PAYLOAD-1\n"
	headerSize = 64
	alignment  = 4096
	// Far above any real index; keeps a damaged header from asking for memory.
	maxIndexSize = 1 << 20
)

// header is the fixed part: little-endian, headerSize bytes.
type header struct {
	size      int64 // of header, index and frames together
	indexSize uint32
	indexSum  [sha256.Size]byte
}

func (h header) bytes() []byte {
	b := make([]byte, 0, headerSize)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.size))
	b = binary.LittleEndian.AppendUint32(b, h.indexSize)
	b = append(b, 0, 0, 0, 0)
	return append(b, h.indexSum[:]...)
}

var errNoHeader = errors.New("no payload header")

func parseHeader(b []byte) (header, error) {
	if len(b) != headerSize || string(b[:len(magic)]) != magic {
		return header{}, errNoHeader
	}
	h := header{
		size:      int64(binary.LittleEndian.Uint64(b[16:])),
		indexSize: binary.LittleEndian.Uint32(b[24:]),
	}
	copy(h.indexSum[:], b[32:])
	if h.indexSize > maxIndexSize || h.size < headerSize+int64(h.indexSize) {
		return header{}, errNoHeader
	}
	return h, nil
}

// File is one program in the payload.
type File struct {
	// Name is a plain file name, without folders.
	Name string
	// Mode holds the permission bits only.
	Mode fs.FileMode
	// Size is the unpacked size in bytes.
	Size   int64
	filter filter
	frames []frame
}

type frame struct {
	offset int64 // of the compressed bytes, from the end of the index
	start  int64 // of the unpacked bytes in their file
	packed int64 // compressed size
	size   int64 // unpacked size
	sum    [sha256.Size]byte
}

func encodeIndex(files []File) []byte {
	var b bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&b, "file %s %o %d %s\n", f.Name, f.Mode.Perm(), f.Size, f.filter)
		for _, fr := range f.frames {
			fmt.Fprintf(&b, "frame %d %d %x\n", fr.packed, fr.size, fr.sum)
		}
	}
	return b.Bytes()
}

// parseIndex reads an index and checks that it is consistent in itself and
// with the number of bytes that follow it.
func parseIndex(r io.Reader, frameBytes int64) ([]File, error) {
	var files []File
	var offset, fileOffset int64
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		kind, rest, _ := strings.Cut(lines.Text(), " ")
		switch kind {
		case "file":
			var f File
			var name string
			if _, err := fmt.Sscanf(rest, "%s %o %d %s", &f.Name, &f.Mode, &f.Size, &name); err != nil {
				return nil, fmt.Errorf("index line %q: %w", lines.Text(), err)
			}
			var err error
			if f.filter, err = filterNamed(name); err != nil {
				return nil, err
			}
			if f.Name == "." || f.Name == ".." || strings.ContainsAny(f.Name, "/\x00") {
				return nil, fmt.Errorf("index has the unsafe file name %q", f.Name)
			}
			files = append(files, f)
			fileOffset = 0
		case "frame":
			fr := frame{offset: offset, start: fileOffset}
			var sum string
			if _, err := fmt.Sscanf(rest, "%d %d %s", &fr.packed, &fr.size, &sum); err != nil {
				return nil, fmt.Errorf("index line %q: %w", lines.Text(), err)
			}
			raw, err := hex.DecodeString(sum)
			if err != nil || len(raw) != sha256.Size || len(files) == 0 || fr.packed <= 0 || fr.size <= 0 || fr.size > FrameSize {
				return nil, fmt.Errorf("index line %q is not valid", lines.Text())
			}
			copy(fr.sum[:], raw)
			offset += fr.packed
			fileOffset += fr.size
			last := &files[len(files)-1]
			last.frames = append(last.frames, fr)
		default:
			return nil, fmt.Errorf("index line %q is not known", lines.Text())
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	for _, f := range files {
		var size int64
		for _, fr := range f.frames {
			size += fr.size
		}
		if size != f.Size {
			return nil, fmt.Errorf("index gives %s %d bytes, its frames %d", f.Name, f.Size, size)
		}
	}
	if offset != frameBytes {
		return nil, fmt.Errorf("index describes %d compressed bytes, the payload has %d", offset, frameBytes)
	}
	return files, nil
}
