package payload

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
)

// Where things are unless something says otherwise.
const (
	DefaultDataDir = "/var/lib/kombi"
	DefaultConfig  = "/etc/kombi/config.yaml"
)

// DataDir finds the data directory that the program will use for this command
// line: the --data-dir or -d flag, then KOMBI_DATA_DIR, then the data-dir key
// of the configuration file and its drop-ins, then the default. It reads only
// as much of these as it needs; saying what is wrong with them is the
// program's business.
func DataDir(args []string, getenv func(string) string) string {
	flags := scanFlags(args)
	dir := flags.dataDir
	if dir == "" {
		dir = getenv("KOMBI_DATA_DIR")
	}
	if dir == "" {
		config := flags.config
		if config == "" {
			config = getenv("KOMBI_CONFIG")
		}
		if config == "" {
			config = DefaultConfig
		}
		dir = dataDirFromConfig(config)
	}
	if dir == "" {
		return DefaultDataDir
	}
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

type flags struct{ dataDir, config string }

// passthrough are commands, also by argv[0], whose flags are not Kombi's:
// `ctr run -d` means detach.
var passthrough = map[string]bool{"kubectl": true, "ctr": true, "crictl": true, "virtctl": true}

func scanFlags(args []string) flags {
	var f flags
	if len(args) == 0 || passthrough[filepath.Base(args[0])] {
		return f
	}
	for i := 1; i < len(args); i++ {
		arg := args[i]
		if arg == "--" || passthrough[arg] {
			break
		}
		for _, known := range []struct {
			long, short string
			value       *string
		}{{"--data-dir", "-d", &f.dataDir}, {"--config", "-c", &f.config}} {
			if value, ok := strings.CutPrefix(arg, known.long+"="); ok {
				*known.value = value
			} else if (arg == known.long || arg == known.short) && i+1 < len(args) {
				i++
				*known.value = args[i]
			} else if strings.HasPrefix(arg, known.short) && len(arg) > 2 && !strings.HasPrefix(arg, "--") {
				*known.value = strings.TrimPrefix(arg[2:], "=")
			} else {
				continue
			}
			break
		}
	}
	return f
}

// dataDirFromConfig reads the key from the file and from the drop-ins in the
// folder beside it; the last one wins, as for every other key.
func dataDirFromConfig(config string) string {
	files, _ := filepath.Glob(config + ".d/*.yaml") // sorted
	dir := ""
	for _, file := range append([]string{config}, files...) {
		if value := topLevelKey(file, "data-dir"); value != "" {
			dir = value
		}
	}
	return dir
}

// topLevelKey returns the plain or quoted scalar of a key that begins a line of
// a YAML file, or "".
func topLevelKey(path, key string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	value := ""
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), ":")
		if !ok || strings.Trim(strings.TrimRight(name, " "), `"'`) != key {
			continue
		}
		rest = strings.TrimSpace(rest)
		if len(rest) > 1 && (rest[0] == '"' || rest[0] == '\'') {
			if end := strings.IndexByte(rest[1:], rest[0]); end >= 0 {
				value = rest[1 : end+1]
			}
			continue
		}
		if strings.HasPrefix(rest, "#") {
			continue
		}
		rest, _, _ = strings.Cut(rest, " #")
		value = strings.TrimSpace(rest)
	}
	return value
}
