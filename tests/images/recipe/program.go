package recipe

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Go builds a program of the module in a folder of the repository and returns it.
// It has to be static: an image has no C library for it.
func (b *Builder) Go(ctx context.Context, module, pkg string) ([]byte, error) {
	out := filepath.Join(b.Work, filepath.Base(pkg))
	args := []string{"build", "-ldflags=-s -w", "-o", out}
	if os.Getenv("GOFLAGS") == "" {
		// Nothing needs cgo with these tags.
		args = append(args, "-tags=netgo,osusergo")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = filepath.Join(b.Repo, module)
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build %s: %w\n%s", pkg, err, text)
	}
	return StaticProgram(out)
}

// Module is the folder with the sources of a module that the module in a folder of
// the repository uses.
func (b *Builder) Module(ctx context.Context, module, path string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", path)
	cmd.Dir = filepath.Join(b.Repo, module)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list -m %s: %w", path, err)
	}
	dir := strings.TrimSpace(string(out))
	if dir == "" {
		return "", fmt.Errorf("module %s is not downloaded", path)
	}
	return dir, nil
}

// StaticProgram reads a program and makes sure that it needs no libraries.
func StaticProgram(path string) ([]byte, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s is no program: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s is not static: its image would need a C library", path)
		}
	}
	return os.ReadFile(path)
}
