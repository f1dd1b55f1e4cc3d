package guardian

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/smcgw/smcgw/gateway/process"
)

// keptEnv carries Options.Keep to a guardian that replaces a dead one.
const keptEnv = "SMCGW_KEPT"

// Kept decodes Options.Keep of the daemon, in a guardian that the daemon started to replace a
// dead one. It returns false in all other processes.
func Kept(into any) (bool, error) {
	if os.Getenv(process.RoleEnv) != roleGuardian {
		return false, nil
	}
	if err := json.Unmarshal([]byte(os.Getenv(keptEnv)), into); err != nil {
		return true, fmt.Errorf("%s: %w", keptEnv, err)
	}
	return true, nil
}

// keep adds Options.Keep to the environment of such a guardian.
func (o Options) keep() (Options, error) {
	text, err := json.Marshal(o.Keep)
	if err != nil {
		return o, fmt.Errorf("%s: %w", keptEnv, err)
	}
	o.Env = append(slices.Clip(o.Env), keptEnv+"="+string(text))
	return o, nil
}
