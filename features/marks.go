package features

import (
	"bufio"
	"io"
	"slices"
)

// marks are the places of some lines of a file, so that lines in the middle of it can be
// read: that of each markEvery-th line.
type marks []int64

const markEvery = 256

// add is told where the line of a row begins, of each row in turn.
func (m *marks) add(row int, at int64) {
	if row%markEvery == 0 {
		*m = append(*m, at)
	}
}

// markLines returns the marks of a file.
func markLines(r io.Reader) (m marks, err error) {
	lines := bufio.NewReaderSize(r, 1<<16)
	at := int64(0)
	for row := 0; ; row++ {
		text, err := readLine(lines)
		if len(text) > 0 {
			m.add(row, at)
		}
		if at += int64(len(text)); err == io.EOF {
			return m, nil
		} else if err != nil {
			return nil, err
		}
	}
}

// read calls each for the lines of some rows. The text is valid until each returns.
func (m marks) read(r io.ReaderAt, some spans, each func(row int, text []byte) error) error {
	var lines *bufio.Reader
	for _, span := range some {
		at, row := m[span.from/markEvery], span.from/markEvery*markEvery
		in := io.NewSectionReader(r, at, 1<<62)
		if lines == nil {
			lines = bufio.NewReaderSize(in, 1<<16)
		} else {
			lines.Reset(in)
		}
		for ; row < span.to; row++ {
			text, err := readLine(lines)
			if err == io.EOF && len(text) > 0 {
				err = nil
			}
			if err == nil && row >= span.from {
				err = each(row, text)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readLine reads a line, which is valid until the next.
func readLine(r *bufio.Reader) ([]byte, error) {
	text, err := r.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return text, err
	}
	text = slices.Clone(text)
	rest, err := r.ReadBytes('\n')
	return append(text, rest...), err
}

// spans are rows, among which there may be some others.
type spans []span

type span struct{ from, to int } // to is not part of it

// add adds a row behind the others.
func (s *spans) add(row int) {
	if n := len(*s); n > 0 && row-(*s)[n-1].to < markEvery {
		(*s)[n-1].to = row + 1
		return
	}
	*s = append(*s, span{row, row + 1})
}
