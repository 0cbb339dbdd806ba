package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// objectKey identifies an object whatever version it is written in.
type objectKey struct {
	group, kind, namespace, name string
}

// variants returns the keys that an object may turn out to have: one without a
// namespace is in "default", unless its kind is cluster-scoped, which is known
// only once the API server knows the kind.
func (k objectKey) variants() []objectKey {
	if k.namespace != "" {
		return []objectKey{k}
	}
	inDefault := k
	inDefault.namespace = "default"
	return []objectKey{k, inDefault}
}

func (k objectKey) String() string {
	s := k.kind
	if k.group != "" {
		s += "." + k.group
	}
	if k.namespace != "" {
		return s + " " + k.namespace + "/" + k.name
	}
	return s + " " + k.name
}

// document is one object of a manifest and where it was found.
type document struct {
	file   string // relative to the set's root
	number int    // 1 for the first document of the file
	line   int    // where the document begins
	object *unstructured.Unstructured
}

func (d document) gvk() schema.GroupVersionKind { return d.object.GroupVersionKind() }

func (d document) key() objectKey {
	gvk := d.gvk()
	return objectKey{group: gvk.Group, kind: gvk.Kind, namespace: d.object.GetNamespace(), name: d.object.GetName()}
}

func (d document) where() string { return position(d.file, d.number, d.line) }

func position(file string, number, line int) string {
	return fmt.Sprintf("%s: document %d, line %d", file, number, line)
}

// problem is something that keeps a document from being applied.
type problem struct {
	reason string // one of the Reason constants of the AddOn type
	text   string // one sentence: where, what, why
}

// rawDocument is the text of one document of a YAML file.
type rawDocument struct {
	start int // the line of the file that text begins with
	line  int // the first line with something on it
	text  []byte
}

// splitYAML cuts a YAML stream at its document markers. A marker at the start of
// a line is one wherever it stands, also inside a block scalar, so no parsing is
// needed, and a broken document does not hide those after it.
func splitYAML(data []byte) []rawDocument {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	var (
		docs    []rawDocument
		current = rawDocument{start: 1}
		blank   = true // so far only empty lines, comments and directives
	)
	flush := func(next int) {
		if !blank {
			docs = append(docs, current)
		}
		current, blank = rawDocument{start: next}, true
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		content := bytes.TrimRight(line, "\r\n")
		switch {
		case isMarker(content, "---"):
			flush(number)
			// The document may begin behind its marker.
			rest := bytes.TrimSpace(content[3:])
			if len(rest) > 0 && rest[0] != '#' {
				blank, current.line = false, number
				line = append([]byte("   "), line[3:]...)
			} else {
				line = []byte("\n")
			}
		case isMarker(content, "..."):
			flush(number + 1)
			continue
		case blank && len(content) > 0 && content[0] == '%':
			line = []byte("\n") // a directive such as %YAML 1.2
		default:
			if trimmed := bytes.TrimSpace(content); blank && len(trimmed) > 0 && trimmed[0] != '#' {
				blank, current.line = false, number
			}
		}
		current.text = append(current.text, line...)
	}
	flush(0)
	return docs
}

func isMarker(line []byte, marker string) bool {
	if !bytes.HasPrefix(line, []byte(marker)) {
		return false
	}
	return len(line) == 3 || line[3] == ' ' || line[3] == '\t'
}

var lineNumber = regexp.MustCompile(`\bline (\d+)\b`)

// absoluteLines turns the line numbers of a parser's message, which count from
// the start of the document, into lines of the file, and returns the first.
func absoluteLines(message string, raw rawDocument) (string, int) {
	first := raw.line
	seen := false
	message = lineNumber.ReplaceAllStringFunc(message, func(match string) string {
		n, err := strconv.Atoi(match[len("line "):])
		if err != nil {
			return match
		}
		n += raw.start - 1
		if !seen {
			first, seen = n, true
		}
		return "line " + strconv.Itoa(n)
	})
	return message, first
}

// parse reads all documents of one file. What cannot be read is reported and
// does not hold back the rest.
func parse(file string, data []byte) ([]document, []problem) {
	if strings.HasSuffix(strings.ToLower(file), ".json") {
		return parseJSON(file, data)
	}
	var (
		docs     []document
		problems []problem
	)
	for i, raw := range splitYAML(data) {
		text, err := yaml.YAMLToJSONStrict(raw.text)
		if err != nil {
			message, line := absoluteLines(oneLine(err), raw)
			problems = append(problems, problem{invalid, fmt.Sprintf("%s: this is not valid YAML: %s", position(file, i+1, line), message)})
			continue
		}
		d, p := objects(file, i+1, raw.line, text)
		docs, problems = append(docs, d...), append(problems, p...)
	}
	return docs, problems
}

// parseJSON reads one or more JSON values.
func parseJSON(file string, data []byte) ([]document, []problem) {
	var (
		docs     []document
		problems []problem
		decoder  = json.NewDecoder(bytes.NewReader(data))
	)
	for number := 1; ; number++ {
		start := skipSpace(data, decoder.InputOffset())
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return docs, problems
		}
		if err != nil {
			at := start
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				at = min(syntax.Offset, int64(len(data)))
			}
			return docs, append(problems, problem{invalid, fmt.Sprintf("%s: this is not valid JSON: %s", position(file, number, lineAt(data, at)), oneLine(err))})
		}
		d, p := objects(file, number, lineAt(data, start), raw)
		docs, problems = append(docs, d...), append(problems, p...)
	}
}

func skipSpace(data []byte, from int64) int64 {
	for from < int64(len(data)) && bytes.IndexByte([]byte(" \t\r\n"), data[from]) >= 0 {
		from++
	}
	return from
}

func lineAt(data []byte, offset int64) int { return 1 + bytes.Count(data[:offset], []byte("\n")) }

// objects turns one document into the object or, for a List, objects it holds.
func objects(file string, number, line int, text []byte) ([]document, []problem) {
	at := position(file, number, line)
	reject := func(format string, args ...any) ([]document, []problem) {
		return nil, []problem{{invalid, at + ": " + fmt.Sprintf(format, args...)}}
	}
	if trimmed := bytes.TrimSpace(text); bytes.Equal(trimmed, []byte("null")) {
		return nil, nil
	} else if len(trimmed) == 0 || trimmed[0] != '{' {
		return reject("this is not a Kubernetes object: a mapping with apiVersion, kind and metadata is expected")
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &object.Object); err != nil {
		return reject("this cannot be read: %s", oneLine(err))
	}
	for _, field := range []string{"apiVersion", "kind"} {
		if s, _ := object.Object[field].(string); s == "" {
			return reject("%s is missing", field)
		}
	}
	apiVersion, _ := object.Object["apiVersion"].(string)
	if _, err := schema.ParseGroupVersion(apiVersion); err != nil {
		return reject("apiVersion %q is not of the form group/version", apiVersion)
	}
	if metadata, ok := object.Object["metadata"].(map[string]any); ok {
		// In YAML, y, no, 1 and the like are not text unless they are quoted.
		for _, field := range []string{"name", "namespace"} {
			switch value := metadata[field].(type) {
			case nil, string:
			default:
				return reject("metadata.%s is not text but %v; put it in quotes", field, value)
			}
		}
	}
	if err := object.UnmarshalJSON(text); err != nil { // keeps integers apart from floats
		return reject("this cannot be read: %s", oneLine(err))
	}
	if isList(object) {
		var (
			docs     []document
			problems []problem
		)
		items, _ := object.Object["items"].([]any)
		for _, item := range items {
			text, err := json.Marshal(item)
			if err != nil {
				return reject("an item of the list cannot be read: %s", oneLine(err))
			}
			d, p := objects(file, number, line, text)
			docs, problems = append(docs, d...), append(problems, p...)
		}
		return docs, problems
	}
	if object.GetName() == "" {
		if object.GetGenerateName() != "" {
			return reject("%s has metadata.generateName, which would make a new object each time; give it a metadata.name", object.GetKind())
		}
		return reject("%s has no metadata.name", object.GetKind())
	}
	return []document{{file: file, number: number, line: line, object: object}}, nil
}

// isList tells a list of objects from a custom kind whose name ends in List and
// that happens to have items: a list has no name.
func isList(object *unstructured.Unstructured) bool {
	return object.IsList() && strings.HasSuffix(object.GetKind(), "List") && object.GetName() == ""
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", " ")), " ")
}
