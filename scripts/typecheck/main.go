// typecheck checks that packages, and everything that they import, fit together
// for another architecture. It reads all sources but generates no code, which
// takes a minute where compiling the 2,000 upstream packages takes ten. Function
// bodies are checked in this module only: the upstream ones are released for the
// architectures that they support, and what differs is which files belong to them.
//
//	GOARCH=arm64 CGO_ENABLED=0 typecheck ./cmd/... ./pkg/...
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	n, err := check(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "typecheck: %v\n", err)
		os.Exit(1)
	}
	fmt.Printf("%d packages fit together for %s\n", n, os.Getenv("GOARCH"))
}

func check(patterns []string) (int, error) {
	root, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	list, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedModule,
		ParseFile: func(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
			file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
			if file != nil && !strings.HasPrefix(name, root+string(filepath.Separator)) {
				dropBodies(file)
			}
			return file, err
		},
	}, patterns...)
	if err != nil {
		return 0, err
	}
	if len(list) == 0 {
		return 0, errors.New("no packages")
	}
	count, bad := 0, 0
	packages.Visit(list, nil, func(p *packages.Package) {
		count++
		p.Syntax = nil // memory
		own := p.Module != nil && p.Module.Main
		soft := make(map[string]bool)
		for _, e := range p.TypeErrors {
			// Without bodies, imports and parameters look unused.
			soft[e.Msg] = e.Soft && !own
		}
		for _, e := range p.Errors {
			if soft[e.Msg] {
				continue
			}
			bad++
			fmt.Fprintln(os.Stderr, e)
		}
	})
	if bad > 0 {
		return count, fmt.Errorf("%d errors", bad)
	}
	return count, nil
}

// dropBodies makes every function one that is implemented elsewhere.
func dropBodies(file *ast.File) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			f.Body = nil
		}
	}
}
