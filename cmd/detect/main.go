// Detect is the command detect of mlrbfn as a program of its own.
package main

import "github.com/mlrbfn/mlrbfn/internal/command"

func main() { command.Main("detect") }
