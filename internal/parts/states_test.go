package parts

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	_ "github.com/mlrbfn/mlrbfn/bucket/s3"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestStatesInBucket: states of runs can be read from the bucket that they write to, until
// they have done all. Objects with other names are none.
func TestStatesInBucket(t *testing.T) {
	testenv.Start(t, "s3")
	t.Run("a part that cannot be read", partThatCannotBeRead)
	t.Run("a panic", panicIsNoEnd)
	set, err := Open(t.Context(), "s3://data/set", Layout[struct{}]{Kind: PartKind})
	if err != nil {
		t.Fatal(err)
	}
	folder := set.Folder
	begin := func(index int) *Recorder {
		r := StartRecorder(t.TempDir() + "/state")
		r.SendTo(t.Context(), folder, PartKind, Shard{Index: index, Count: 3})
		r.Update(func(s *State) { s.Total, s.Done, s.Failed["cut short"] = 10, 4*index, 1 })
		return r
	}
	first, second, third := begin(1), begin(2), begin(3)
	first.Sends()
	first.sending.Wait()
	if _, found, err := set.Runs(t.Context()); err != nil || !found[Shard{Index: 1, Count: 3}].Sending || found[Shard{Index: 1, Count: 3}].Stopped {
		t.Errorf("while the part is sent the bucket has %+v, %v", found, err)
	}
	first.End(errors.New("the connection broke"))
	none := StartRecorder(t.TempDir() + "/state")
	none.SendTo(t.Context(), folder, PartKind, Shard{Index: 1, Count: 4})
	none.End(errors.New("the model does not open"))
	second.End(nil)
	third.sending.Wait()
	for _, name := range []string{"part-00001-of-00003.json", "part-1-of-3.progress", "verdicts-00001-of-00003.progress", "part-00004-of-00003.progress"} {
		if err := folder.Put(t.Context(), name, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	runs, found, err := set.Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || !slices.Contains(slices.Collect(maps.Keys(found)), Shard{Index: 3, Count: 3}) {
		t.Fatalf("%v", found)
	}
	if s := found[Shard{Index: 1, Count: 3}]; s.Done != 4 || !s.Stopped || !s.Sending || s.Failed["cut short"] != 1 || time.Since(s.Moved) > time.Hour {
		t.Errorf("%+v", s)
	}
	if s := found[Shard{Index: 3, Count: 3}]; s.Done != 12 || s.Stopped {
		t.Errorf("%+v", s)
	}
	if want := []Part{{Shard: Shard{1, 3}, Path: folder.URL("part-00001-of-00003"), Finished: true, Begun: true}, {Shard: Shard{3, 3}, Begun: true}}; !slices.Equal(runs, want) {
		t.Errorf("%+v, want %+v", runs, want)
	}
}

// partThatCannotBeRead: what is made again anyway, by force, need not be readable.
func partThatCannotBeRead(t *testing.T) {
	unreadable := errors.New("access denied")
	shard, made := Shard{1, 1}, "part-00001-of-00001-0123456789abcdef"
	set, err := Open(t.Context(), "s3://data/unreadable", Layout[string]{
		Kind: PartKind, Ends: []string{""},
		Parse:   func(text []byte, _ string) (*string, error) { return &made, nil },
		Of:      func(*string) (string, string, []string) { return shard.String(), made, nil },
		Objects: func(context.Context, *bucket.Folder, *string) ([]Written, error) { return nil, unreadable },
	})
	if err == nil {
		err = set.Folder.Put(t.Context(), set.Record(shard), []byte("{}"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := set.Prepare(t.Context(), shard, false); !errors.Is(err, unreadable) {
		t.Errorf("without force: %v", err)
	}
	if r, whole, err := set.Prepare(t.Context(), shard, true); r == nil || whole || err != nil {
		t.Errorf("with force: %v, whole: %v, %v", r, whole, err)
	}
}

// panicIsNoEnd: a run that panics while it makes a part has not done all.
func panicIsNoEnd(t *testing.T) {
	set, err := Open(t.Context(), "s3://data/panic", Layout[struct{}]{Kind: PartKind})
	if err != nil {
		t.Fatal(err)
	}
	shard := Shard{1, 2}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, err = set.Make(t.Context(), Making[struct{}]{Shard: shard, Cache: t.TempDir(), Make: func(_ string, _ *struct{}, _ bool, r *Recorder) (func() error, error) {
			r.Update(func(s *State) { s.Total, s.Done = 10, 4 })
			panic("a mistake")
		}})
	}()
	if _, found, err := set.Runs(t.Context()); err != nil || !found[shard].Stopped || found[shard].Ended {
		t.Errorf("the bucket has %+v, %v", found, err)
	}
}
