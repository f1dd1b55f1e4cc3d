package admin

import ()
