package deploy

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// The sets that are not left to the deployer's user: rbac is applied by [RBAC],
// and without crds there is nowhere to record the outcome.
const (
	rbacFolder = "rbac"
	crdsFolder = "crds"
)

var variable = regexp.MustCompile(`\$\{([A-Z][A-Z0-9_]*)\}`)

// loadBundled reads the sets that are part of the program. An error is a mistake
// in the program or in vars, never in what a user wrote.
func loadBundled(files fs.FS, vars map[string]string, disable []string) ([]*set, error) {
	if files == nil {
		return nil, nil
	}
	folders, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, fmt.Errorf("the bundled manifests cannot be read: %w", err)
	}
	var sets []*set
	for _, folder := range folders {
		if !folder.IsDir() || folder.Name() == rbacFolder {
			continue
		}
		s := newSet(BundledPrefix+folder.Name(), kombiv1.SourceBundled, folder.Name())
		s.disabled = isDisabled(folder.Name(), disable)
		err := fs.WalkDir(files, folder.Name(), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !isManifest(file) {
				return err
			}
			data, err := fs.ReadFile(files, file)
			if err != nil {
				return err
			}
			data, err = expand(data, vars)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			s.add(file, data, false)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("the bundled manifests cannot be read: %w", err)
		}
		if len(s.problems) > 0 {
			return nil, fmt.Errorf("the bundled manifests are broken: %s", s.problems[0].text)
		}
		sets = append(sets, s)
	}
	return sets, nil
}

// expand fills in ${NAME}. A name that is not known is an error: an object with
// a placeholder in it must not reach the cluster.
func expand(data []byte, vars map[string]string) ([]byte, error) {
	var missing string
	out := variable.ReplaceAllFunc(data, func(match []byte) []byte {
		name := string(match[2 : len(match)-1])
		value, ok := vars[name]
		if !ok || value == "" {
			missing = name
		}
		return []byte(value)
	})
	if missing != "" {
		return nil, fmt.Errorf("the variable %s has no value", missing)
	}
	return out, nil
}

// checkDisable refuses what cannot be disabled. Other names that are no bundled
// set are fine: most parts of Kombi that can be disabled have no manifests.
func checkDisable(disable []string) error {
	for _, name := range disable {
		if isDisabled(rbacFolder, []string{name}) || isDisabled(crdsFolder, []string{name}) {
			return fmt.Errorf("%q cannot be disabled, because Kombi does not work without it; take it off the list", name)
		}
	}
	return nil
}

// isDisabled reports whether the list has the set of that folder, by its own name
// or by that of its AddOn.
func isDisabled(name string, disable []string) bool {
	return slices.Contains(disable, name) || slices.Contains(disable, BundledPrefix+name)
}

// isManifest reports whether a file is one that is applied, by its name.
func isManifest(file string) bool {
	switch strings.ToLower(path.Ext(file)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}
