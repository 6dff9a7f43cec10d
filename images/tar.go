package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
)

// counted counts the bytes that are read, and can take some back.
type counted struct {
	r     io.Reader
	back  []byte
	pos   int64
	ended bool // a read was asked for bytes behind the end
}

func (c *counted) Read(p []byte) (n int, err error) {
	if len(c.back) > 0 {
		n = copy(p, c.back)
		c.back = c.back[n:]
	} else if n, err = c.r.Read(p); n == 0 && err == io.EOF {
		c.ended = true
	}
	c.pos += int64(n)
	return n, err
}

// Bounds of what is read of a tar besides images.
const (
	maxName   = 4 << 10
	maxClass  = 1 << 10
	maxJSON   = 4 << 20
	tarBlock  = 512
	magicAt   = 257
	sumAt     = 148
	sumLength = 8
)

// webdataset reads a tar as the package webdataset understands it: consecutive members
// whose names are the same up to the first dot of their last part belong together, and a
// .cls or .json among them has the label of the images.
type webdataset struct {
	s        *Reading
	ctx      context.Context
	unit     int
	u        *Unit // of that index
	contents *Contents
	from     *tarReader
	in       *counted // of what from gives
	size     int64    // of the tar, −1 if unknown

	seen  map[string]bool
	key   string
	first int // of the images of the key
	label string
	class bool // the label is of a .cls
}

// fail lists a failure.
func (w *webdataset) fail(path string, err error) {
	w.contents.Failed = append(w.contents.Failed, Failure{path, err})
}

// settle gives the images of a key their label.
func (w *webdataset) settle() {
	for i := w.first; i < len(w.contents.Images); i++ {
		w.contents.Images[i].Label = w.label
	}
	w.first, w.label, w.class = len(w.contents.Images), "", false
}

// read reads the tar. Damage is listed, and only what is not the tar's fault is returned.
func (w *webdataset) read() error {
	defer w.settle()
	w.seen = map[string]bool{}
	t := tar.NewReader(w.in)
	for {
		at := (w.in.pos + tarBlock - 1) / tarBlock * tarBlock // the next header
		h, err := t.Next()
		if w.from.err != nil {
			return w.from.err
		}
		switch {
		case err == io.EOF && w.in.ended:
			w.fail(w.u.Path, fmt.Errorf("it ends at byte %d without the mark of the end of a tar: perhaps it was cut off", w.in.pos))
			return nil
		case err == io.EOF:
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			w.fail(w.u.Path, fmt.Errorf("it is cut off after byte %d", at))
			return nil
		case err != nil:
			next, err2 := w.findHeader()
			if w.from.err != nil {
				return w.from.err
			}
			if err2 != nil {
				w.fail(w.u.Path, fmt.Errorf("from byte %d on it is damaged (%v)", at, err))
				return nil
			}
			w.fail(w.u.Path, fmt.Errorf("it is damaged from byte %d to %d (%v): what was there is lost", at, next, err))
			t = tar.NewReader(w.in)
			continue
		}
		if err := w.member(h, t); err != nil {
			if w.from.err != nil {
				return w.from.err
			}
			if errors.Is(err, errCut) {
				w.fail(w.u.Path, fmt.Errorf("it is cut off within %s", name(h)))
				return nil
			}
			return err
		}
	}
}

// errCut says that a tar ends within a member.
var errCut = errors.New("the tar ends within it")

// findHeader goes on to the next block that is the header of a member and returns where
// it is.
func (w *webdataset) findHeader() (int64, error) {
	if odd := w.in.pos % tarBlock; odd > 0 {
		if _, err := io.CopyN(io.Discard, w.in, tarBlock-odd); err != nil {
			return 0, err
		}
	}
	block := make([]byte, tarBlock)
	for {
		if _, err := io.ReadFull(w.in, block); err != nil {
			return 0, err
		}
		if isHeader(block) {
			w.in.back = block
			w.in.pos -= tarBlock
			return w.in.pos, nil
		}
	}
}

// isHeader tells whether a block is the header of a member.
func isHeader(block []byte) bool {
	if !bytes.HasPrefix(block[magicAt:], []byte("ustar")) {
		return false
	}
	text := strings.Trim(string(block[sumAt:sumAt+sumLength]), " \x00")
	want, err := strconv.ParseInt(text, 8, 64)
	if err != nil {
		return false
	}
	sum := int64(sumLength * ' ')
	for i, b := range block {
		if i < sumAt || i >= sumAt+sumLength {
			sum += int64(b)
		}
	}
	return sum == want
}

// name returns the name of a member.
func name(h *tar.Header) string { return strings.TrimPrefix(h.Name, "./") }

// member reads one member.
func (w *webdataset) member(h *tar.Header, r io.Reader) error {
	member := name(h)
	base := path.Base(member)
	if h.Typeflag != tar.TypeReg || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "__") {
		return nil
	}
	if len(member) > maxName {
		w.fail(w.u.Path, fmt.Errorf("a name of %d bytes, and it may have %d: %q…", len(member), maxName, member[:64]))
		return nil
	}
	stem, extension, _ := strings.Cut(base, ".")
	if key := path.Join(path.Dir(member), stem); key != w.key {
		w.settle()
		w.key = key
	}
	off := w.in.pos
	switch strings.ToLower(extension) {
	case "cls":
		return w.readLabel(h, r, maxClass, func(data []byte) (string, error) { return string(bytes.TrimSpace(data)), nil })
	case "json":
		if w.class {
			return nil
		}
		return w.readLabel(h, r, maxJSON, labelOfJSON)
	}
	head := make([]byte, min(h.Size, preprocess.HeadBytes))
	if !preprocess.IsImage(member, nil) {
		if _, err := io.ReadFull(r, head); err != nil {
			return errCut
		}
		if !preprocess.IsImage(member, head) {
			return nil
		}
	} else {
		head = nil
	}
	img := Member{Path: w.u.Path + "#" + member, Bytes: h.Size, MTime: h.ModTime.UnixNano()}
	switch {
	case w.seen[member]:
		w.fail(w.u.Path, fmt.Errorf("%s is in it more than once: the first was taken", member))
		return nil
	case h.Size > maxImage:
		w.fail(img.Path, tooLarge(h.Size))
		return nil
	case w.size >= 0 && off+h.Size > w.size:
		return errCut
	}
	w.seen[member] = true
	read := func() (data []byte, err error) {
		if w.size >= 0 {
			data = make([]byte, h.Size)
			copy(data, head)
			_, err = io.ReadFull(r, data[len(head):])
		} else { // a header may say what it likes
			b := bytes.NewBuffer(append([]byte{}, head...))
			_, err = io.CopyN(b, r, h.Size-int64(len(head)))
			data = b.Bytes()
		}
		if err != nil {
			err = errCut
		}
		return data, err
	}
	var again func() ([]byte, error)
	if u, ctx := w.u, w.ctx; w.size >= 0 {
		again = func() ([]byte, error) {
			data := make([]byte, img.Bytes)
			return data, u.read(context.WithoutCancel(ctx), data, off)
		}
	}
	return w.s.offer(w.ctx, w.unit, w.contents, img, read, again)
}

// readLabel reads the label of the images of a key.
func (w *webdataset) readLabel(h *tar.Header, r io.Reader, most int64, parse func([]byte) (string, error)) error {
	if h.Size > most {
		w.fail(w.u.Path+"#"+name(h), fmt.Errorf("%w: it has %d bytes, and a label may have %d", bucket.ErrSize, h.Size, most))
		return nil
	}
	data := make([]byte, h.Size)
	if _, err := io.ReadFull(r, data); err != nil {
		return errCut
	}
	label, err := parse(data)
	if err == nil && (!utf8.ValidString(label) || len(label) > maxClass) {
		err = fmt.Errorf("the label %.40q… is no short text", label)
	}
	if err != nil {
		w.fail(w.u.Path+"#"+name(h), fmt.Errorf("label: %w", err))
		return nil
	}
	if label != "" {
		w.label, w.class = label, most == maxClass
	}
	return nil
}

// labelOfJSON returns what an object has for label, cls or class; "" if none of them.
func labelOfJSON(data []byte) (string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		if json.Valid(data) {
			return "", nil // a list, say
		}
		return "", err
	}
	for _, name := range []string{"label", "cls", "class"} {
		var text string
		var number json.Number
		switch {
		case json.Unmarshal(fields[name], &text) == nil && text != "":
			return text, nil
		case json.Unmarshal(fields[name], &number) == nil:
			return number.String(), nil
		}
	}
	return "", nil
}
