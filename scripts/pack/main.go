// pack makes the kombi file: the launcher with the compressed programs behind
// it. It compresses with the zstd program, whose high levels pack 10 % better
// than any Go implementation, and remembers what it compressed, because most
// builds change one program of five.
package main

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/kombi-k8s/kombi/pkg/payload"
)

func main() {
	out := flag.String("o", "", "file to write")
	launcher := flag.String("launcher", "", "launcher executable")
	level := flag.Int("level", 9, "zstd level, 1 to 19")
	cache := flag.String("cache", "", "folder for compressed frames")
	limit := flag.Int64("limit", 0, "largest size of the file in MiB, 0 for none")
	flag.Parse()
	if err := pack(*out, *launcher, *level, *cache, *limit, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "pack: %v\n", err)
		os.Exit(1)
	}
}

func pack(out, launcher string, level int, cache string, limit int64, programs []string) (err error) {
	began := time.Now()
	compress := compressor(level)
	if cache != "" {
		if err := os.MkdirAll(cache, 0o755); err != nil {
			return err
		}
		compress = cached(cache, level, compress)
		defer expire(cache, began.Add(-7*24*time.Hour))
	}
	tmp := out + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	if err := payload.Write(f, launcher, programs, compress); err != nil {
		_ = f.Close()
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if limit > 0 && st.Size() > limit<<20 {
		return fmt.Errorf("%s would be %.1f MiB, over the limit of %d MiB", out, float64(st.Size())/(1<<20), limit)
	}
	fmt.Printf("%s: %.1f MiB, zstd level %d, packed in %.1fs\n", out, float64(st.Size())/(1<<20), level, time.Since(began).Seconds())
	return os.Rename(tmp, out)
}

// compressor prefers the zstd program and does without it where there is none.
func compressor(level int) payload.Compressor {
	if tool, err := exec.LookPath("zstd"); err == nil {
		return func(raw []byte) ([]byte, error) {
			cmd := exec.Command(tool, "-q", "-c", "--no-check", "-"+strconv.Itoa(level), "--single-thread", "--long=24")
			cmd.Stdin = bytes.NewReader(raw)
			cmd.Stderr = os.Stderr
			return cmd.Output()
		}
	}
	return func(raw []byte) ([]byte, error) {
		e, err := zstd.NewWriter(nil,
			zstd.WithEncoderLevel(zstd.SpeedBestCompression),
			zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(16<<20),
			zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, err
		}
		return e.EncodeAll(raw, nil), e.Close()
	}
}

// cached keeps compressed frames by what went in and the level.
func cached(dir string, level int, next payload.Compressor) payload.Compressor {
	return func(raw []byte) ([]byte, error) {
		path := filepath.Join(dir, fmt.Sprintf("%x-%d", sha256.Sum256(raw), level))
		if b, err := os.ReadFile(path); err == nil {
			now := time.Now()
			_ = os.Chtimes(path, now, now)
			return b, nil
		}
		b, err := next(raw)
		if err != nil {
			return nil, err
		}
		tmp := path + ".tmp"
		if err := os.WriteFile(tmp, b, 0o644); err != nil {
			return nil, err
		}
		return b, os.Rename(tmp, path)
	}
}

// expire removes frames that no build of the last days has used.
func expire(dir string, before time.Time) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
