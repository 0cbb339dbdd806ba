package manifests

import (
	"io/fs"
	"testing"
)

func TestEveryBundledSetHasItsFolder(t *testing.T) {
	for _, folder := range []string{"crds", "dns", "metrics-server", RBACFolder, "storage"} {
		files, err := fs.ReadDir(FS(), folder)
		if err != nil || len(files) == 0 {
			t.Errorf("folder %s: %d files, error %v", folder, len(files), err)
		}
	}
}
