package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
)

// record is what is remembered of one imported file, so that a restart does
// not read it again.
type record struct {
	Size   int64         `json:"size"`
	MTime  time.Time     `json:"mtime"`
	Digest digest.Digest `json:"digest"`
	Images []Imported    `json:"images"`
}

// same tells whether info describes the file as it was when it was recorded.
func (r record) same(info fs.FileInfo) bool {
	return r.Size == info.Size() && r.MTime.Equal(info.ModTime())
}

// loadState reads the records by file name. A missing or broken state file
// only costs a second import, so neither is an error worth stopping for; the
// second is returned to be logged.
func loadState(path string) (map[string]record, error) {
	records := map[string]record{}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return records, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &records)
	}
	if err != nil {
		return map[string]record{}, fmt.Errorf("image state %s is read as empty: %w", path, err)
	}
	return records, nil
}

// saveState replaces the state file in one step.
func saveState(path string, records map[string]record) error {
	data, err := json.Marshal(records)
	if err != nil {
		return fmt.Errorf("image state: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return fmt.Errorf("image state: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return fmt.Errorf("image state: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("image state: %w", err)
	}
	return nil
}
