// Package nearest finds the known name that a mistyped one probably stands for.
package nearest
