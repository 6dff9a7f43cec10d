package main

import (
	"bufio"
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/arch/arm64/arm64asm"
)

// TestWords compares each word of machine code, disassembled, with the text next to
// it.
func TestWords(t *testing.T) {
	files, err := filepath.Glob("../../*_arm64.s")
	if err != nil || len(files) == 0 {
		t.Fatal("no assembly:", err)
	}
	words := regexp.MustCompile(`^\tWORD \$0x([0-9a-f]{8}) // (.*)$`)
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		count := 0
		for lines := bufio.NewScanner(file); lines.Scan(); {
			m := words.FindStringSubmatch(lines.Text())
			if m == nil {
				continue
			}
			word, err := strconv.ParseUint(m[1], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			is, err := arm64asm.Decode(binary.LittleEndian.AppendUint32(nil, uint32(word)))
			if err != nil {
				t.Errorf("%s: %s: %v", name, m[0], err)
			} else if got := arm64asm.GNUSyntax(is); got != m[2] {
				t.Errorf("%s: %s is %s", name, m[0], got)
			}
			count++
		}
		if count == 0 {
			t.Errorf("%s has no words", name)
		}
	}
}
