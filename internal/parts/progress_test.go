package parts

import (
	"errors"
	"testing"
)

// TestRefusedRun: a run that is refused before it did anything leaves the state of the one
// that has the shard.
func TestRefusedRun(t *testing.T) {
	path := t.TempDir() + "/state"
	running := StartRecorder(path)
	running.Update(func(s *State) { s.Total, s.Done = 10, 4 })
	StartRecorder(path).End(errors.New("another run has the shard"))
	if s, ok := ReadState(path); !ok || s.Stopped || s.Done != 4 {
		t.Errorf("%+v, %v", s, ok)
	}
	running.End(errors.New("the disk is full"))
	if s, ok := ReadState(path); !ok || !s.Stopped || s.Done != 4 {
		t.Errorf("%+v, %v", s, ok)
	}
}
