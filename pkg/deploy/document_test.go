package deploy

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const one = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\n"
	const two = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: two\n"
	cases := []struct {
		name, file, text string
		objects          []string // "name@document:line"
		problems         []string // a part of each
	}{
		{name: "one document", text: one, objects: []string{"one@1:1"}},
		{name: "a leading marker", text: "---\n" + one, objects: []string{"one@1:2"}},
		{name: "several documents", text: one + "---\n" + two, objects: []string{"one@1:1", "two@2:6"}},
		{name: "empty documents and comments are no documents", text: "# a\n---\n\n---\n# b\n---\n" + one + "---\n", objects: []string{"one@1:7"}},
		{name: "carriage returns", text: strings.ReplaceAll(one+"---\n"+two, "\n", "\r\n"), objects: []string{"one@1:1", "two@2:6"}},
		{name: "a byte order mark and a directive", text: "\xef\xbb\xbf%YAML 1.2\n---\n" + one, objects: []string{"one@1:3"}},
		{name: "an end marker", text: one + "...\n" + two, objects: []string{"one@1:1", "two@2:6"}},
		{name: "a document behind its marker", text: "--- {apiVersion: v1, kind: ConfigMap, metadata: {name: one}}\n", objects: []string{"one@1:1"}},
		{name: "a bad document does not hold back the others", text: one + "---\nkind: [\n---\n" + two, objects: []string{"one@1:1", "two@3:8"}, problems: []string{"x.yaml: document 2, line "}},
		{name: "the line of a mistake counts from the top of the file", text: one + "---\nkind: A\nkind: B\n", objects: []string{"one@1:1"}, problems: []string{"document 2, line 7: this is not valid YAML"}},
		{name: "a tab", text: "kind:\n\t- a\n", problems: []string{"this is not valid YAML"}},
		{name: "no kind", text: "apiVersion: v1\nmetadata: {name: a}\n", problems: []string{"document 1, line 1: kind is missing"}},
		{name: "no apiVersion", text: "kind: ConfigMap\nmetadata: {name: a}\n", problems: []string{"apiVersion is missing"}},
		{name: "no name", text: "apiVersion: v1\nkind: ConfigMap\n", problems: []string{"ConfigMap has no metadata.name"}},
		{name: "a generated name", text: "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: a-}\n", problems: []string{"generateName"}},
		{name: "a name that YAML takes for something else", text: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\n", problems: []string{"metadata.name is not text but true; put it in quotes"}},
		{name: "a strange apiVersion", text: "apiVersion: a/b/c\nkind: ConfigMap\nmetadata: {name: a}\n", problems: []string{"apiVersion \"a/b/c\""}},
		{name: "a list of strings", text: "- a\n- b\n", problems: []string{"not a Kubernetes object"}},
		{name: "prose", text: "Hello, world!\n", problems: []string{"not a Kubernetes object"}},
		{name: "metadata of a wrong type", text: "apiVersion: v1\nkind: ConfigMap\nmetadata: 3\n", problems: []string{"document 1, line 1"}},
		{name: "a List", text: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: one}}\n- {kind: X}\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: two}}\n", objects: []string{"one@1:1", "two@1:1"}, problems: []string{"apiVersion is missing"}},
		{name: "a custom kind with items", text: "apiVersion: a.b/v1\nkind: AllowList\nmetadata: {name: one}\nitems: [1]\n", objects: []string{"one@1:1"}},
		{name: "JSON", file: "x.json", text: "\n{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"one\"}}\n{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"two\"}}", objects: []string{"one@1:2", "two@2:3"}},
		{name: "broken JSON", file: "x.json", text: "{\"apiVersion\":\"v1\",\n \"kind\" \"ConfigMap\"}", problems: []string{"x.json: document 1, line 2: this is not valid JSON"}},
		{name: "cut JSON", file: "x.json", text: "{\"apiVersion\":\"v1\",", problems: []string{"this is not valid JSON"}},
		{name: "nothing", text: ""},
		{name: "null", text: "null\n"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			file := c.file
			if file == "" {
				file = "x.yaml"
			}
			documents, problems := parse(file, []byte(c.text))
			var got []string
			for _, d := range documents {
				got = append(got, strings.NewReplacer("x.yaml: document ", "@", "x.json: document ", "@", ", line ", ":").Replace(d.object.GetName()+d.where()))
			}
			if strings.Join(got, " ") != strings.Join(c.objects, " ") {
				t.Errorf("objects %q, want %q (problems %v)", got, c.objects, problems)
			}
			if len(problems) != len(c.problems) {
				t.Fatalf("problems %v, want %d", problems, len(c.problems))
			}
			for i, p := range problems {
				if !strings.Contains(p.text, c.problems[i]) {
					t.Errorf("problem %q does not say %q", p.text, c.problems[i])
				}
				if strings.Contains(p.text, "\n") {
					t.Errorf("problem %q has more than one line", p.text)
				}
			}
		})
	}
}

func TestIntegersStayIntegers(t *testing.T) {
	documents, _ := parse("x.yaml", []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nspec: {big: 9007199254740993, real: 1.5}\n"))
	spec := documents[0].object.Object["spec"].(map[string]any)
	if spec["big"] != int64(9007199254740993) || spec["real"] != 1.5 {
		t.Errorf("spec is %#v", spec)
	}
}
