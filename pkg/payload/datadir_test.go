package payload

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDataDir(t *testing.T) {
	tmp := t.TempDir()
	config := filepath.Join(tmp, "config.yaml")
	write(t, config, []byte("# a comment\ntoken: x\ndata-dir: /from/file # the disk\nnode-label:\n  data-dir: no\n"))
	withDropIn := filepath.Join(tmp, "other.yaml")
	write(t, withDropIn, []byte("data-dir: /from/file\n"))
	must(t, os.Mkdir(withDropIn+".d", 0o755))
	write(t, filepath.Join(withDropIn+".d", "10-a.yaml"), []byte("\"data-dir\": '/from/a'\n"))
	write(t, filepath.Join(withDropIn+".d", "20-b.yaml"), []byte("debug: true\n"))
	empty := filepath.Join(tmp, "empty.yaml")

	tests := []struct {
		name string
		args string
		env  map[string]string
		want string
	}{
		{"nothing", "kombi server -c " + empty, nil, DefaultDataDir},
		{"long flag", "kombi server --data-dir /x", nil, "/x"},
		{"long flag with =", "kombi server --data-dir=/x", nil, "/x"},
		{"short flag", "kombi server -d /x", nil, "/x"},
		{"short flag joined", "kombi server -d/x", nil, "/x"},
		{"short flag with =", "kombi server -d=/x", nil, "/x"},
		{"the last flag wins", "kombi -d /x server --data-dir /y", nil, "/y"},
		{"not clean", "kombi server -d /x/../y/", nil, "/y"},
		{"flag without value", "kombi server -c " + empty + " -d", nil, DefaultDataDir},
		{"environment", "kombi server", map[string]string{"KOMBI_DATA_DIR": "/e"}, "/e"},
		{"flag before environment", "kombi server -d /x", map[string]string{"KOMBI_DATA_DIR": "/e"}, "/x"},
		{"file", "kombi server --config=" + config, nil, "/from/file"},
		{"file from the environment", "kombi server", map[string]string{"KOMBI_CONFIG": config}, "/from/file"},
		{"environment before file", "kombi server -c " + config, map[string]string{"KOMBI_DATA_DIR": "/e"}, "/e"},
		{"drop-in", "kombi server -c " + withDropIn, nil, "/from/a"},
		{"detach is not data-dir", "kombi ctr run -d image id", map[string]string{"KOMBI_CONFIG": empty}, DefaultDataDir},
		{"before a tool's name", "kombi --data-dir /x kubectl delete -d /y", nil, "/x"},
		{"by argv[0]", "/usr/local/bin/ctr run -d image id", map[string]string{"KOMBI_CONFIG": empty}, DefaultDataDir},
		{"by argv[0] with environment", "kubectl get pods", map[string]string{"KOMBI_DATA_DIR": "/e"}, "/e"},
		{"after --", "kombi server -c " + empty + " -- -d /x", nil, DefaultDataDir},
		{"no arguments at all", "", map[string]string{"KOMBI_CONFIG": empty}, DefaultDataDir},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			getenv := func(key string) string { return tt.env[key] }
			if got := DataDir(strings.Fields(tt.args), getenv); got != tt.want {
				t.Errorf("DataDir(%s) = %s, want %s", tt.args, got, tt.want)
			}
		})
	}
}
