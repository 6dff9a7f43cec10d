package parts

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	_ "github.com/mlrbfn/mlrbfn/bucket/s3"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestStatesInBucket: states of runs can be read from the bucket that they write to, until
// they have done all. Objects with other names are none.
func TestStatesInBucket(t *testing.T) {
	testenv.Start(t, "s3")
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
