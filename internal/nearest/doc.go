// Package nearest finds the known name that a mistyped name probably stands for.
package nearest
