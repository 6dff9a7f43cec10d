package command

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// Bytes is the value of a flag that takes an amount of memory: a number of
// bytes, or one of kibi-, mebi-, gibi- or tebibytes as in 512MiB.
type Bytes int64

var units = []string{"B", "KiB", "MiB", "GiB", "TiB"}

// String writes the amount in the largest unit that divides it, and nothing for 0, which
// is no amount.
func (b *Bytes) String() string {
	if *b == 0 {
		return ""
	}
	v, unit := int64(*b), 0
	for v > 0 && v%1024 == 0 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	return strconv.FormatInt(v, 10) + units[unit]
}

// Set reads the amount.
func (b *Bytes) Set(text string) error {
	number, scale := text, 1.0
	for i, unit := range units[1:] {
		if n, ok := strings.CutSuffix(text, unit); ok {
			number, scale = n, float64(int64(1)<<(10*(i+1)))
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSuffix(number, "B"), 64)
	if err != nil || !(v*scale >= 1 && v*scale < 1<<62) {
		return errors.New("it is an amount of memory such as 512MiB")
	}
	*b = Bytes(v * scale)
	return nil
}

// Type names the value in the usage text.
func (b *Bytes) Type() string { return "BYTES" }

// Seeds is the value of a flag that takes seeds with commas between them.
type Seeds []uint64

// String lists the seeds.
func (s *Seeds) String() string {
	parts := lists.Map(*s, func(v uint64) string { return strconv.FormatUint(v, 10) })
	return strings.Join(parts, ",")
}

// Set takes a list of seeds.
func (s *Seeds) Set(text string) error {
	*s = nil
	for part := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseUint(strings.TrimSpace(part), 10, 64)
		if err != nil {
			return fmt.Errorf("seed %q is not a whole number from 0 on", part)
		}
		if slices.Contains(*s, v) {
			return fmt.Errorf("seed %d is given twice", v)
		}
		*s = append(*s, v)
	}
	return nil
}

// Type names the value in the help text.
func (s *Seeds) Type() string { return "seeds" }

// shareValue is the value of a flag that takes a share of the training images, 0 for none, or
// a feature set; with folds, cross:K too.
type shareValue struct {
	to    *pipeline.Share
	folds bool
}

// addShare adds such a flag; the default is that of the zero Share.
func addShare(f *pflag.FlagSet, to *pipeline.Share, folds bool, name, usage string) {
	value := &shareValue{to, folds}
	if err := value.Set(to.String()); err != nil {
		panic(err)
	}
	f.Var(value, name, usage)
}

func (s *shareValue) String() string {
	if s.to == nil {
		return ""
	}
	return s.to.String()
}

// Type names the value in the help text.
func (s *shareValue) Type() string { return "share" }

// Set reads the value.
func (s *shareValue) Set(text string) error {
	if k, ok := strings.CutPrefix(text, "cross:"); ok && s.folds {
		folds, err := strconv.Atoi(k)
		if err != nil || folds < 2 {
			return errors.New("cross:K has K folds, at least 2")
		}
		*s.to = pipeline.Share{Folds: folds}
		return nil
	}
	if text == "auto" && s.folds {
		*s.to = pipeline.Share{Auto: true}
		return nil
	}
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case text == "":
		return errors.New("it is empty")
	case err != nil && s.folds && similar(text, "cross", "auto") != "" && !exists(text):
		return fmt.Errorf("it is a share, a feature set, cross:K with K folds such as cross:10, or auto, and there is no feature set %s", text)
	case err != nil:
		*s.to = pipeline.Share{Features: text}
	case v == 0:
		*s.to = pipeline.Share{None: true}
	case !(v > 0 && v < 1):
		return errors.New("a share lies between 0 and 1")
	default:
		*s.to = pipeline.Share{Fraction: v}
	}
	return nil
}

// choice is the value of a flag that takes one of some words.
type choice struct {
	value   *string
	second  *bool // in the place of value: whether it is the second word
	words   []string
	aliases map[string]string // other words that are still understood
}

// Choice adds a flag that takes one of words, a list separated by |.
func Choice(f *pflag.FlagSet, to *string, name, value, words, text string) {
	*to = value
	f.Var(&choice{value: to, words: strings.Split(words, "|")}, name, text)
}

// eitherOr adds a flag that takes one of two words; the second sets to.
func eitherOr(f *pflag.FlagSet, to *bool, name, words, text string) {
	f.Var(&choice{second: to, words: strings.Split(words, "|")}, name, text)
}

// also lets a Choice understand another word for one of its own.
func also(f *pflag.FlagSet, name, word, means string) {
	c := f.Lookup(name).Value.(*choice)
	if c.aliases == nil {
		c.aliases = map[string]string{}
	}
	c.aliases[word] = means
}

func (c *choice) String() string {
	switch {
	case c.value != nil:
		return *c.value
	case c.second == nil:
		return ""
	case *c.second:
		return c.words[1]
	}
	return c.words[0]
}

func (c *choice) Type() string { return "choice" }

func (c *choice) Set(text string) error {
	if word, ok := c.aliases[text]; ok {
		text = word
	}
	if !slices.Contains(c.words, text) {
		last := len(c.words) - 1
		return errors.New("it is " + strings.Join(c.words[:last], ", ") + " or " + c.words[last])
	}
	if c.second != nil {
		*c.second = text == c.words[1]
	} else {
		*c.value = text
	}
	return nil
}

// optionalWords are the words that may follow a flag which needs none.
var optionalWords = map[string][]string{"--explain": {"why", "where"}}

// joinWords returns arguments with such words joined to their flags, as pflag wants
// them: "--explain where" becomes "--explain=where". A word that is nearly one of them and
// no file is joined too, so that it is refused instead of being looked for.
func joinWords(args []string) []string {
	joined := []string{} // nil would mean those of the process
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(joined, args[i:]...)
		}
		if words := optionalWords[arg]; i+1 < len(args) && (slices.Contains(words, args[i+1]) || similar(args[i+1], words...) != "" && !exists(args[i+1])) {
			i++
			arg += "=" + args[i]
		}
		joined = append(joined, arg)
	}
	return joined
}
