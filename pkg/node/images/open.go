package images

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Refused says why something is not an image that can be imported. Trying the
// same bytes again gives the same answer, unlike other errors of an import.
type Refused struct {
	// Reason completes "the archive is refused: ", with the next action.
	Reason string
	// Err is the cause and may be nil.
	Err error
}

func (e *Refused) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return fmt.Sprintf("%s (%v)", e.Reason, e.Err)
}

func (e *Refused) Unwrap() error { return e.Err }

const (
	reasonForeign = "it is not an image archive: use one that `docker save`, `podman save` or `kombi image export` wrote"
	reasonCut     = "it ends too early: copy it again, completely"
	reasonDamaged = "its content is damaged: copy it again"
	reasonMissing = "parts of its images are missing or damaged: save and copy it again, completely"
)

// decompress returns the tar inside r, which may be plain, gzip or zstd.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	magic, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case len(magic) == 0:
		return nil, &Refused{Reason: "it is empty: copy it again"}
	case len(magic) >= 3 && magic[0] == 0x1f && magic[1] == 0x8b && magic[2] == 8:
		zr, err := gzip.NewReader(br)
		if err != nil {
			return nil, classify(err)
		}
		return zr, nil
	case len(magic) >= 4 && string(magic) == "\x28\xb5\x2f\xfd",
		// A skippable frame, as parallel compressors put first.
		len(magic) >= 4 && magic[0]&0xf0 == 0x50 && string(magic[1:]) == "\x2a\x4d\x18":
		// One goroutine and a small window: an edge node has little of both.
		zr, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, classify(err)
		}
		return zr.IOReadCloser(), nil
	}
	return io.NopCloser(br), nil
}

// classify turns the errors of tar and of the compressors into a refusal and
// leaves every other error as it is.
func classify(err error) error {
	var (
		refused *Refused
		damaged = errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) ||
			errors.Is(err, zstd.ErrCRCMismatch) || errors.Is(err, zstd.ErrMagicMismatch)
	)
	switch {
	case err == nil || errors.As(err, &refused):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &Refused{Reason: reasonCut, Err: err}
	case errors.Is(err, tar.ErrHeader):
		return &Refused{Reason: reasonForeign, Err: err}
	case damaged, strings.HasPrefix(err.Error(), "flate: corrupt input"):
		return &Refused{Reason: reasonDamaged, Err: err}
	}
	return err
}

// sniff looks at the first regular file in the tar that r holds, so that a
// foreign archive of many gigabytes is refused before its content is stored.
func sniff(r io.Reader) error {
	tarball, err := decompress(r)
	if err != nil {
		return err
	}
	defer tarball.Close()
	tr := tar.NewReader(tarball)
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return &Refused{Reason: reasonForeign}
		}
		if err != nil {
			return classify(err)
		}
		if hdr.Typeflag != tar.TypeReg {
			continue
		}
		if !imageEntry(hdr.Name) {
			return &Refused{Reason: fmt.Sprintf("it holds %q where an image is expected, so %s", hdr.Name, reasonForeign)}
		}
		return nil
	}
}

// imageEntry tells if a docker or OCI archive can hold an entry of this name.
func imageEntry(name string) bool {
	name = path.Clean(name)
	switch name {
	case "oci-layout", "index.json", "manifest.json", "repositories":
		return true
	}
	dir, base := path.Split(name)
	switch {
	case strings.HasPrefix(dir, "blobs/"):
		return true
	case base == "layer.tar", base == "VERSION", base == "json":
		return true
	}
	// Old docker and podman archives name blobs by their digest.
	base = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(base, ".gz"), ".tar"), ".json")
	return dir == "" && len(base) == 64 && strings.Trim(base, "0123456789abcdef") == ""
}
