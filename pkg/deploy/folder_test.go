package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"NAME\", namespace: default}\n"

func manifest(name string) string { return strings.ReplaceAll(configMap, "NAME", name) }

// write puts files below dir; names ending in a slash are folders.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func describe(sets []*set) string {
	var parts []string
	for _, s := range sets {
		text := s.name + "("
		var names []string
		for _, d := range s.documents {
			names = append(names, d.object.GetName())
		}
		slices.Sort(names)
		text += strings.Join(names, ",") + ")"
		if s.frozen != "" {
			text += "frozen"
		}
		if s.incomplete {
			text += "incomplete"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

func TestScanFolder(t *testing.T) {
	cases := []struct {
		name    string
		files   map[string]string
		prepare func(t *testing.T, dir string)
		want    string
		foreign []string // a part of each sentence
		problem string
	}{
		{name: "an empty folder"},
		{name: "each file is a set", files: map[string]string{"a.yaml": manifest("a"), "b.yml": manifest("b"), "c.json": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}`}, want: "a(a) b(b) c(c)"},
		{name: "a folder is a set of its files", files: map[string]string{"shop/a.yaml": manifest("a"), "shop/deep/b.yaml": manifest("b")}, want: "shop(a,b)"},
		{name: "a file and a folder of one name are one set", files: map[string]string{"shop/a.yaml": manifest("a"), "shop.yaml": manifest("b")}, want: "shop(a,b)"},
		{name: "the bundled sets' prefix is theirs", files: map[string]string{"kombi-dns.yaml": manifest("a")}, want: "user-kombi-dns(a)"},
		{name: "a file with a .skip is left alone", files: map[string]string{"shop/a.yaml": manifest("a"), "shop/a.yaml.skip": "", "shop/b.yaml": manifest("b")}, want: "shop(b)"},
		{name: "a set with a .skip inside", files: map[string]string{"shop/a.yaml": manifest("a"), "shop/.skip": ""}, want: "shop(a)frozen"},
		{name: "a set with a .skip beside it", files: map[string]string{"shop/a.yaml": manifest("a"), "shop.skip": ""}, want: "shop(a)frozen"},
		{name: "a foreign file", files: map[string]string{"README.md": "hello", "shop/notes.txt": "x", "shop/a.yaml": manifest("a")}, want: "shop(a)", foreign: []string{"README.md is ignored", "shop/notes.txt is ignored"}},
		{name: "what editors leave", files: map[string]string{".a.yaml.swp": "x", "a.yaml~": "x", "#a.yaml#": "x", ".hidden.yaml": "x", "4913": "", "b.yaml.swp": "", ".git/config": ""}},
		{name: "binary", files: map[string]string{"a.yaml": "a\x00b"}, want: "a()incomplete", problem: "a.yaml: the file is not applied: it is binary"},
		{name: "broken beside good", files: map[string]string{"a.yaml": "kind: [", "b.yaml": manifest("b")}, want: "a()incomplete b(b)", problem: "a.yaml: document 1, line"},
		{name: "the same object twice", files: map[string]string{"shop/a.yaml": manifest("a"), "shop/b.yaml": manifest("a")}, want: "shop(a)", problem: "shop/b.yaml: document 1, line 1: ConfigMap default/a is in this set already (shop/a.yaml"},
		{name: "a link out of the folder", prepare: func(t *testing.T, dir string) {
			outside := filepath.Join(t.TempDir(), "o.yaml")
			write(t, filepath.Dir(outside), map[string]string{"o.yaml": manifest("o")})
			symlink(t, outside, filepath.Join(dir, "a.yaml"))
		}, want: "a()incomplete", problem: "outside of the manifests folder"},
		{name: "a link within the folder", files: map[string]string{"..data/a.yaml": manifest("a")}, prepare: func(t *testing.T, dir string) {
			symlink(t, "..data/a.yaml", filepath.Join(dir, "a.yaml"))
		}, want: "a(a)"},
		{name: "a link to nowhere", prepare: func(t *testing.T, dir string) { symlink(t, "nowhere", filepath.Join(dir, "a.yaml")) }, want: "a()incomplete", problem: "a.yaml: the file is not applied: no such file"},
		{name: "a link to the folder above", files: map[string]string{"shop/a.yaml": manifest("a")}, prepare: func(t *testing.T, dir string) {
			symlink(t, "..", filepath.Join(dir, "shop", "up"))
		}, want: "shop(a)", foreign: []string{"shop/up is ignored"}},
		{name: "a pipe", prepare: func(t *testing.T, dir string) {
			if err := syscall.Mkfifo(filepath.Join(dir, "a.yaml"), 0o600); err != nil {
				t.Skip(err)
			}
		}, want: "a()incomplete", problem: "it is not a regular file"},
		{name: "a huge file", prepare: func(t *testing.T, dir string) {
			file, err := os.Create(filepath.Join(dir, "a.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if err := file.Truncate(maxManifest + 1); err != nil {
				t.Fatal(err)
			}
		}, want: "a()incomplete", problem: "larger than 16 MiB"},
		{name: "names that no object may have", files: map[string]string{"Shop App_1.yaml": manifest("a")}, want: "shop-app-1-"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, c.files)
			if c.prepare != nil {
				c.prepare(t, dir)
			}
			found, err := scanFolder(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(found.sets); got != c.want && (!strings.HasSuffix(c.want, "-") || !strings.HasPrefix(got, c.want)) {
				t.Errorf("sets %q, want %q", got, c.want)
			}
			if len(found.foreign) != len(c.foreign) {
				t.Errorf("foreign %q, want %q", found.foreign, c.foreign)
			}
			for i := range min(len(found.foreign), len(c.foreign)) {
				if !strings.Contains(found.foreign[i], c.foreign[i]) {
					t.Errorf("foreign %q, want %q", found.foreign[i], c.foreign[i])
				}
			}
			var problems []string
			for _, s := range found.sets {
				for _, p := range s.problems {
					problems = append(problems, p.text)
				}
			}
			if (c.problem == "") != (len(problems) == 0) || c.problem != "" && !strings.Contains(problems[0], c.problem) {
				t.Errorf("problems %q, want %q", problems, c.problem)
			}
		})
	}
}

func symlink(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

func TestAnAbsentFolderIsNotAnEmptyOne(t *testing.T) {
	if _, err := scanFolder(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("no error")
	}
}

func TestChecksumFollowsTheContents(t *testing.T) {
	sum := func(files map[string]string) string {
		dir := t.TempDir()
		write(t, dir, files)
		found, err := scanFolder(dir)
		if err != nil || len(found.sets) != 1 {
			t.Fatal(err, found)
		}
		return found.sets[0].checksum()
	}
	base := sum(map[string]string{"s/a.yaml": manifest("a")})
	if base != sum(map[string]string{"s/a.yaml": manifest("a"), "README": "x"}) {
		t.Error("a foreign file changes the checksum")
	}
	for name, files := range map[string]map[string]string{
		"contents":  {"s/a.yaml": manifest("b")},
		"file name": {"s/b.yaml": manifest("a")},
		"skip":      {"s/a.yaml": manifest("a"), "s/a.yaml.skip": ""},
		"frozen":    {"s/a.yaml": manifest("a"), "s.skip": ""},
	} {
		if base == sum(files) {
			t.Errorf("the checksum does not follow the %s", name)
		}
	}
}

func TestSetName(t *testing.T) {
	long := strings.Repeat("x", 100)
	for in, want := range map[string]string{"shop": "shop", "Shop": "shop", "shop.v1": "shop.v1"} {
		if got := setName(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	if a, b := setName("shop 1"), setName("shop_1"); a == b || !strings.HasPrefix(a, "shop-1-") {
		t.Errorf("names %q and %q", a, b)
	}
	if got := setName(long); len(got) > 63 || got == setName(long+"y") {
		t.Errorf("a long name becomes %q", got)
	}
	for _, odd := range []string{"..", "-", "ü", "a..b", "a.-b"} {
		if got := setName(odd); strings.Contains(got, "..") || strings.HasPrefix(got, "-") || strings.HasPrefix(got, ".") {
			t.Errorf("%q becomes %q", odd, got)
		}
	}
}
