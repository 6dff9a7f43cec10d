//go:build !amd64 || noasm

package jpeg

import "testing"

func onEachPath(t *testing.T, test func(t *testing.T)) { t.Run("plain", test) }
