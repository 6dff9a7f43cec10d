package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

var _ = declare("audit", 100, "[flags] STORE", "Prove that a store of verdicts was not altered",
	`Proves that no verdict and no review in STORE was altered or dropped, or names the first that was. STORE is the file or the postgres:// address that serve stores in; it is only read, also while serve runs.

It prints the head of the audit trail. Who can write the store could write all of it anew: against him only a head that was noted elsewhere proves anything. --heads keeps them in a file; put it where he cannot write, or sign it.`, addAudit)

func addAudit(c *command) {
	c.readsURLs = []string{""}
	c.section("proof")
	given := c.StringArray("head", nil, "`HEAD` that was printed before, which must still hold (repeat)")
	file := c.String("heads", "", "`FILE` of heads, one a line, which must all hold; the new one is added to it")
	c.section("output")
	c.addJSON("print one JSON object")
	c.takes(1, 1, "name one store")
	c.run = func(ctx context.Context, s Streams) error {
		var known []store.Head
		for _, text := range *given {
			h, err := store.ParseHead(text)
			if err != nil {
				return Usagef("--head: %w", err)
			}
			known = append(known, h)
		}
		noted, err := readHeads(*file)
		if err != nil {
			return fmt.Errorf("--heads %s: %w", *file, err)
		}
		st, err := store.OpenReadOnly(ctx, c.Arg(0))
		if err != nil {
			return err
		}
		head, err := st.Verify(ctx, append(known, noted...)...)
		err = errors.Join(err, st.Close())
		if broken, ok := errors.AsType[*store.BrokenError](err); ok && c.asJSON {
			if jsonErr := writeJSON(s.Out, struct {
				OK    bool   `json:"ok"`
				Line  int64  `json:"line"`
				ID    string `json:"id,omitempty"`
				Error string `json:"error"`
			}{false, broken.Seq, broken.ID, broken.What}); jsonErr != nil {
				return jsonErr
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", store.Name(c.Arg(0)), err)
		}
		if *file != "" && (len(noted) == 0 || noted[len(noted)-1] != head) {
			if err := writeHeads(*file, append(noted, head)); err != nil {
				return err
			}
		}
		proven := fmt.Sprintf("%d lines, each as it was written", head.Seq)
		if n := len(known) + len(noted); n > 0 {
			proven += fmt.Sprintf("; %s noted before still holds", count(n, "head"))
			if n > 1 {
				proven = strings.TrimSuffix(proven, "s")
			}
		}
		return c.print(s, struct {
			OK    bool   `json:"ok"`
			Lines int64  `json:"lines"`
			Head  string `json:"head"`
		}{true, head.Seq, head.String()}, fmt.Sprintf("%s: %s\nhead %s\n", store.Name(c.Arg(0)), proven, head))
	}
}

// readHeads reads a file that writeHeads wrote; none is in one that does not exist.
func readHeads(file string) (heads []store.Head, err error) {
	if file == "" {
		return nil, nil
	}
	data, err := disk.ReadFile(file, disk.Meta)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		h, err := store.ParseHead(line)
		if err != nil {
			return nil, err
		}
		heads = append(heads, h)
	}
	return heads, nil
}

func writeHeads(file string, heads []store.Head) error {
	return disk.Write(file, func(w io.Writer) error {
		for _, h := range heads {
			if _, err := fmt.Fprintln(w, h); err != nil {
				return err
			}
		}
		return nil
	})
}
