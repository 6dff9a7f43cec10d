package simulation_test

import (
	"fmt"

	"github.com/mlrbfn/mlrbfn/pipeline/drift/simulation"
)

// How soon a shift by one and a half standard deviations raises the alarm, and how often
// there is an alarm without a shift.
func ExampleStream() {
	s := simulation.Stream{Calibration: 500, Calm: 200, Shift: 1.5, Until: 500}
	fmt.Println("false alarms in 50 runs:", s.FalseAlarms(simulation.Ours, 0.01, 50))
	delays := s.Delays(simulation.Ours, 0.01, 50)
	fmt.Println("half of the runs notice the shift within 50 scores:", delays[len(delays)/2] <= 50)
	// Output:
	// false alarms in 50 runs: 0
	// half of the runs notice the shift within 50 scores: true
}
