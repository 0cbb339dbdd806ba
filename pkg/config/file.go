package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxFile is far more than any configuration needs; it keeps a wrong path (a disk image) from being read whole.
const maxFile = 1 << 20

// dropIns lists <file>.d/*.yaml in lexical order. A missing folder is an empty one.
func dropIns(file string) ([]string, error) {
	entries, err := os.ReadDir(file + ".d")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, filepath.Join(file+".d", e.Name()))
		}
	}
	return out, nil
}

// assignment is one "key: value" of one layer.
type assignment struct {
	key    string
	values []valueAt
	append bool // key+
	scalar bool // written as one value, not as a list
	origin Origin
}

// valueAt is the text of one value with its YAML tag ("" outside files) and its place.
type valueAt struct {
	text   string
	tag    string
	origin Origin
}

// readFile returns what the file assigns, and everything that is wrong with it.
func readFile(path string) ([]assignment, Problems) {
	at := func(line int) Origin { return Origin{Kind: FromFile, File: path, Line: line} }
	data, err := readLimited(path)
	if err != nil {
		return nil, Problems{{Origin: at(0), Cause: "the file cannot be read: " + plainError(err),
			Next: readNext(err)}}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil // empty, or comments only
		}
		return nil, Problems{notYAML(path, data, err)}
	}
	var problems Problems
	if err := dec.Decode(&second); err == nil {
		problems = append(problems, &Problem{Origin: at(second.Line), Cause: "a second YAML document begins here",
			Next: "put all keys in one document, or the second in a file in " + filepath.Base(path) + ".d"})
	} else if !errors.Is(err, io.EOF) {
		problems = append(problems, notYAML(path, data, err))
	}
	root := resolveAlias(doc.Content[0])
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, problems
	}
	if root.Kind != yaml.MappingNode {
		return nil, append(problems, &Problem{Origin: at(root.Line),
			Cause: "the file holds " + nodeKind(root) + " where keys and values are expected", Next: "write lines such as: data-dir: /var/lib/kombi"})
	}
	seen := map[string]int{}
	var out []assignment
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, val := root.Content[i], resolveAlias(root.Content[i+1])
		origin := at(key.Line)
		if first, twice := seen[key.Value]; twice {
			problems = append(problems, &Problem{Origin: origin, Key: key.Value,
				Cause: fmt.Sprintf("the key was already set in line %d", first), Next: "keep one of the two"})
			continue
		}
		seen[key.Value] = key.Line
		a := assignment{key: strings.TrimSuffix(key.Value, "+"), append: strings.HasSuffix(key.Value, "+"), origin: origin}
		if p := a.take(val, path); p != nil {
			p.Origin, p.Key = at(val.Line), a.key
			problems = append(problems, p)
			continue
		}
		out = append(out, a)
	}
	return out, problems
}

func (a *assignment) take(val *yaml.Node, path string) *Problem {
	items := []*yaml.Node{val}
	switch val.Kind {
	case yaml.SequenceNode:
		items = val.Content
	case yaml.ScalarNode:
		a.scalar = true
	default:
		return complain("give one value or a list", "the value is %s", nodeKind(val))
	}
	for _, n := range items {
		n = resolveAlias(n)
		if n.Kind != yaml.ScalarNode {
			return complain("give plain values", "the list holds %s", nodeKind(n))
		}
		if n.Tag == "!!null" {
			return complain("give a value, or remove the key", "there is no value")
		}
		a.values = append(a.values, valueAt{n.Value, n.Tag, Origin{Kind: FromFile, File: path, Line: n.Line}})
	}
	return nil
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if info.IsDir() {
		return nil, errors.New("it is a folder")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = errors.New("it is larger than 1 MiB")
	}
	return data, err
}

func readNext(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "run it as root, or correct its permissions"
	}
	return "correct the path"
}

// plainError drops the operation and the path, which the sentence already names.
func plainError(err error) string {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err.Error()
	}
	return err.Error()
}

func notYAML(path string, data []byte, err error) *Problem {
	text := yamlPlace.ReplaceAllString(err.Error(), "")
	return &Problem{Origin: Origin{Kind: FromFile, File: path, Line: badLine(data)},
		Cause: "this is not YAML: " + text, Next: "correct this line"}
}

var yamlPlace = regexp.MustCompile(`^yaml: (line \d+: )?`)

// badLine finds the line that is at fault: the one after the longest beginning of the file that is YAML. The
// library's own line is often the beginning of the whole block, or one off.
func badLine(data []byte) int {
	lines := bytes.SplitAfter(data, []byte("\n"))
	if len(lines) > 1000 {
		return 0 // nobody's hand-written configuration; do not parse it a thousand times
	}
	for n := len(lines) - 1; n >= 0; n-- {
		if !isYAML(bytes.Join(lines[:n], nil)) {
			continue
		}
		for n < len(lines)-1 && len(bytes.TrimSpace(lines[n])) == 0 {
			n++
		}
		return n + 1
	}
	return 0
}

func isYAML(data []byte) bool {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var n yaml.Node
		switch err := dec.Decode(&n); {
		case errors.Is(err, io.EOF):
			return true
		case err != nil:
			return false
		}
	}
}

func resolveAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func nodeKind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}
