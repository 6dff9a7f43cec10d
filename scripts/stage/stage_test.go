package main

import (
	"os"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/version"
)

func TestChangesOf(t *testing.T) {
	page := "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.2.0 (2026-01-01)\n\n- old\n\n### Fixed\n\n- more\n\n## 1.1.0\n\n- oldest\n"
	for version, want := range map[string]string{
		"1.2.0": "# mlrbfn 1.2.0\n\n- old\n\n### Fixed\n\n- more\n", "1.1.0": "# mlrbfn 1.1.0\n\n- oldest\n", "1.3.0": "# mlrbfn 1.3.0\n\n- new\n",
	} {
		if got := changesOf(page, version); got != want {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
	mine, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := changesOf(string(mine), version.Version); strings.Count(got, "\n- ") == 0 {
		t.Errorf("CHANGELOG.md has no changes of %s", version.Version)
	}
}

func TestLicenceOf(t *testing.T) {
	redistribution := "Redistribution and use in source and\nbinary forms, with or without modification"
	for text, want := range map[string]string{
		"Apache License\n  Version 2.0, January 2004": "Apache-2.0", "Permission is hereby granted, free of charge, to": "MIT",
		redistribution: "BSD-2-Clause", redistribution + " Neither the name of Google": "BSD-3-Clause", "All rights reserved.": "",
	} {
		if got := licenceOf(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
