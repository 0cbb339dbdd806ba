package badinput

import "testing"

// TestCommands has rows about command lines other than that of kombi server.
func TestCommands(t *testing.T) {
	path, env := program(t)
	for _, row := range []struct {
		name string
		args []string
		want []string
	}{
		{"unknown command", []string{"sevrer"}, []string{`"sevrer"`, "did you mean server?"}},
		{"unknown command that is like nothing", []string{"frobnicate"}, []string{`"frobnicate"`, "--help"}},
		{"unknown subcommand", []string{"config", "shwo"}, []string{`"shwo"`, "see --help"}},
		{"unknown format", []string{"config", "show", "-o", "xml", "-c", emptyFile(t)}, []string{`"xml" is not a format`, "give yaml or json"}},
		{"time that is none", []string{"status", "--wait=soon"}, []string{`flag --wait: "soon" is not a duration`, "give a time such as 30s"}},
		{"import of nothing", []string{"image", "import"}, []string{"no archive is given", "name one or more files"}},
		{"images without a server", []string{"image", "list", "--data-dir=/nonexistent"}, []string{"kombi is not running", "start it with"}},
		{"stop without a server", []string{"stop", "--data-dir=/nonexistent"}, []string{"kombi is not running", "start it with"}},
		{"token without a server", []string{"token", "--data-dir=/nonexistent"}, []string{"there is no token yet", "start `kombi server` first"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			run(t, start{path: path, env: env, args: row.args}).refused(t, row.want...)
		})
	}
}
