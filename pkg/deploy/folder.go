package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// maxManifest is the size above which a file is not read: an object in the
// datastore is at most 1.5 MB, and a file that is many times larger is an image
// or a backup that strayed here.
const maxManifest = 16 << 20

// folder is what one scan of the manifests folder found.
type folder struct {
	sets    []*set
	dirs    []string // to be watched
	foreign []string // one sentence for each file that is not for us
	skips   map[string]string
}

// scanFolder reads the manifests folder. An error means that nothing is known
// about its contents, which is not the same as an empty folder.
func scanFolder(root string) (*folder, error) {
	resolved, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(resolved)
	if err != nil {
		return nil, err
	}
	f := &folder{dirs: []string{resolved}, skips: make(map[string]string)}
	scan := &folderScan{folder: f, root: resolved, byName: make(map[string]*set)}
	for _, entry := range entries {
		if base, ok := strings.CutSuffix(entry.Name(), skipSuffix); ok && base != "" {
			f.skips[base] = entry.Name()
		}
	}
	for _, entry := range entries {
		scan.top(entry)
	}
	// A folder that is deleted or unmounted meanwhile looks empty.
	if _, err := os.Stat(resolved); err != nil {
		return nil, err
	}
	for _, s := range scan.byName {
		f.sets = append(f.sets, s)
	}
	slices.SortFunc(f.sets, func(a, b *set) int { return strings.Compare(a.name, b.name) })
	return f, nil
}

const skipSuffix = ".skip"

type folderScan struct {
	*folder
	root   string
	byName map[string]*set
}

// top handles one entry of the manifests folder itself.
func (f *folderScan) top(entry fs.DirEntry) {
	name := entry.Name()
	if isHidden(name) || strings.HasSuffix(name, skipSuffix) {
		return
	}
	path := filepath.Join(f.root, name)
	info, err := f.stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && entry.Type()&fs.ModeSymlink == 0:
		return // gone since the folder was listed
	case err != nil && !isManifest(name):
		f.ignore("%s is ignored: %s", name, cause(err))
		return
	case err == nil && info.IsDir():
		s := f.set(name, name)
		f.freeze(s, name)
		f.tree(s, path, 0)
		return
	case !isManifest(name):
		f.ignore("%s is ignored: only .yaml, .yml and .json files are applied", name)
		return
	}
	base := strings.TrimSuffix(name, filepath.Ext(name))
	s := f.set(base, name)
	f.freeze(s, base)
	f.file(s, path)
}

// set returns the set of that base name. A file and a folder of the same name
// are one set.
func (f *folderScan) set(base, path string) *set {
	name := setName(base)
	// Bundled sets have the prefix to themselves.
	if strings.HasPrefix(name, BundledPrefix) {
		name = setName("user-" + base)
	}
	if name == "" {
		name = setName("set-" + base)
	}
	s, ok := f.byName[name]
	if !ok {
		s = newSet(name, kombiv1.SourceUser, path)
		f.byName[name] = s
	} else {
		s.path += ", " + path
	}
	return s
}

// freeze looks for the file that says to leave the whole set alone.
func (f *folderScan) freeze(s *set, base string) {
	if skip, ok := f.skips[base]; ok {
		s.frozen = skip
		s.note("frozen", skip)
	}
}

// tree adds all manifests below dir to the set.
func (f *folderScan) tree(s *set, dir string, depth int) {
	shown := f.shown(dir)
	if depth > 8 {
		s.unreadable("%s: folders are nested too deep here; eight levels are read", shown)
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.unreadable("%s: the folder cannot be read: %s", shown, cause(err))
		return
	}
	f.dirs = append(f.dirs, dir)
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if depth == 0 && entry.Name() == skipSuffix {
			s.frozen = f.shown(path)
			s.note("frozen", s.frozen)
			continue
		}
		if isHidden(entry.Name()) || strings.HasSuffix(entry.Name(), skipSuffix) {
			continue
		}
		// A link to a folder is not followed: it could lead in a circle.
		if entry.IsDir() {
			f.tree(s, path, depth+1)
			continue
		}
		if !isManifest(entry.Name()) {
			f.ignore("%s is ignored: only .yaml, .yml and .json files are applied", f.shown(path))
			continue
		}
		f.file(s, path)
	}
}

// file adds one manifest to the set.
func (f *folderScan) file(s *set, path string) {
	shown := f.shown(path)
	data, err := f.read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isLink(path):
		return // deleted while the folder was read
	case err != nil:
		s.unreadable("%s: the file is not applied: %s", shown, cause(err))
		return
	case bytes.IndexByte(data, 0) >= 0:
		s.unreadable("%s: the file is not applied: it is binary, not YAML or JSON text", shown)
		return
	}
	_, err = os.Lstat(path + skipSuffix)
	s.add(shown, data, err == nil)
}

// stat follows links, but not out of the manifests folder.
func (f *folderScan) stat(path string) (fs.FileInfo, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	if inside, err := filepath.Rel(f.root, resolved); err != nil || inside == ".." || strings.HasPrefix(inside, "../") {
		return nil, fmt.Errorf("it is a link to %s, outside of the manifests folder; copy the file here instead", resolved)
	}
	return os.Stat(resolved)
}

// read returns the contents of a regular file of reasonable size.
func (f *folderScan) read(path string) ([]byte, error) {
	if _, err := f.stat(path); err != nil {
		return nil, err
	}
	// Without O_NONBLOCK opening a pipe would wait for a writer for ever.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(file, maxManifest+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("it is larger than %d MiB", maxManifest>>20)
	}
	return data, nil
}

func (f *folderScan) shown(path string) string {
	if rel, err := filepath.Rel(f.root, path); err == nil {
		return rel
	}
	return path
}

func (f *folderScan) ignore(format string, args ...any) {
	f.foreign = append(f.foreign, fmt.Sprintf(format, args...))
}

// isHidden recognizes what editors, file managers and version control leave
// behind; such files are nobody's mistake and are not worth a word.
func isHidden(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") ||
		strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#") ||
		strings.HasSuffix(name, ".swp") || strings.HasSuffix(name, ".tmp") || name == "4913"
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// cause strips the operation and path of a file error, which the sentence names
// already.
func cause(err error) string {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return oneLine(err)
}
