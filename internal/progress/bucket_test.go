package progress

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/bucket"
	_ "github.com/mlrbfn/mlrbfn/bucket/s3"
	"github.com/mlrbfn/mlrbfn/internal/parts"
	"github.com/mlrbfn/mlrbfn/internal/teststore"
)

// TestStatesInBucket: states of runs can be read from the bucket that they write to, until
// they have done all. Objects with other names are none.
func TestStatesInBucket(t *testing.T) {
	teststore.Start(t, "s3")
	folder, err := bucket.Open(t.Context(), "s3://data/set")
	if err != nil {
		t.Fatal(err)
	}
	begin := func(index int) *Recorder {
		r := Start(t.TempDir() + "/state")
		r.SendTo(t.Context(), folder, Part, index, 3)
		r.Update(func(s *State) { s.Total, s.Done, s.Failed["cut short"] = 10, 4*index, 1 })
		return r
	}
	first, second, third := begin(1), begin(2), begin(3)
	first.Sends()
	first.sending.Wait()
	if found, err := In(t.Context(), folder, Part); err != nil || !found[parts.Shard{Index: 1, Count: 3}].Sending || found[parts.Shard{Index: 1, Count: 3}].Stopped {
		t.Errorf("while the part is sent the bucket has %+v, %v", found, err)
	}
	first.End(errors.New("the connection broke"))
	none := Start(t.TempDir() + "/state")
	none.SendTo(t.Context(), folder, Part, 1, 4)
	none.End(errors.New("the model does not open"))
	second.End(nil)
	third.sending.Wait()
	for _, name := range []string{"part-00001-of-00003.json", "part-1-of-3.progress", "verdicts-00001-of-00003.progress", "part-00004-of-00003.progress"} {
		if err := folder.Put(t.Context(), name, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	found, err := In(t.Context(), folder, Part)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || !slices.Contains(slices.Collect(maps.Keys(found)), parts.Shard{Index: 3, Count: 3}) {
		t.Fatalf("%v", found)
	}
	if s := found[parts.Shard{Index: 1, Count: 3}]; s.Done != 4 || !s.Stopped || !s.Sending || s.Failed["cut short"] != 1 || time.Since(s.Moved) > time.Hour {
		t.Errorf("%+v", s)
	}
	if s := found[parts.Shard{Index: 3, Count: 3}]; s.Done != 12 || s.Stopped {
		t.Errorf("%+v", s)
	}
}
