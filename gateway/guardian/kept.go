package guardian

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/smcgw/smcgw/gateway/process"
)

// keptEnv has Options.Keep, for a guardian in the place of a dead one.
const keptEnv = "SMCGW_KEPT"

// Kept reads what Options.Keep of the daemon is, in a guardian that it has started in the place
// of a dead one. It is false in all other processes.
func Kept(into any) (bool, error) {
	if os.Getenv(process.RoleEnv) != roleGuardian {
		return false, nil
	}
	if err := json.Unmarshal([]byte(os.Getenv(keptEnv)), into); err != nil {
		return true, fmt.Errorf("%s: %w", keptEnv, err)
	}
	return true, nil
}

// keep adds it to the environment of such a guardian.
func (o Options) keep() (Options, error) {
	text, err := json.Marshal(o.Keep)
	if err != nil {
		return o, fmt.Errorf("%s: %w", keptEnv, err)
	}
	o.Env = append(slices.Clip(o.Env), keptEnv+"="+string(text))
	return o, nil
}
